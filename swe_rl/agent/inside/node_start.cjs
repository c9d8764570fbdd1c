// Loaded before a Node program, for what a sandbox is and Node does not expect.
const os = require("node:os");
const { syncBuiltinESMExports } = require("node:module");

// A limit of the address space would not hold the gigabytes that every WebAssembly memory else reserves.
require("node:v8").setFlagsFromString("--wasm-max-mem-pages=2048");

// A sandbox's user may have no entry in passwd.
const known = os.userInfo;
os.userInfo = (options) => {
  try {
    return known(options);
  } catch {
    const [uid, gid] = [process.getuid(), process.getgid()];
    return { uid, gid, username: process.env.USER || "agent", homedir: os.homedir(), shell: "/bin/bash" };
  }
};
syncBuiltinESMExports();

delete process.env.NODE_OPTIONS; // what this program starts is started without it
