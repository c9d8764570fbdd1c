// Runs inside a sandbox without network: 127.0.0.1:PORT there becomes a Unix socket that leads out.
//
// Invariants:
// - Alone: Node 12 or newer, nothing but its standard library. The same contract as door.py.
// - When the starting process returns 0, the port accepts connections; the forwarder itself stays behind.
"use strict";

const net = require("net");
const { spawn } = require("child_process");

const [port, path, stage] = process.argv.slice(2);

if (stage !== "serve") {
  const child = spawn(process.execPath, [__filename, port, path, "serve"], {
    detached: true,
    stdio: ["ignore", "pipe", "ignore"],
  });
  child.stdout.once("data", () => process.exit(0));
  child.once("exit", () => process.exit(1));
} else {
  const server = net.createServer({ allowHalfOpen: true }, (client) => {
    const outside = net.connect({ path, allowHalfOpen: true });
    client.on("error", () => outside.destroy());
    outside.on("error", () => client.destroy());
    client.pipe(outside);
    outside.pipe(client);
  });
  server.once("error", () => process.exit(1));
  server.listen(Number(port), "127.0.0.1", 64, () => process.stdout.write("ready\n"));
}
