"""`python -m swe_rl.hardware.ray.question ADDRESS`: what a Ray cluster has free, as one line of JSON.

Invariants:
- Ends with status 0 and an answer, whatever the cluster is like: {"nodes": {name: {"CPU": 1.0, "GPU": 0.0}},
  "problem": null or a text}.
"""

import json
import sys

from swe_rl.hardware.ray.cluster import RayClusterError, connect


def main(arguments: list[str]) -> int:
    nodes: dict[str, dict[str, float]] = {}  # what is free
    problem: str | None = None
    try:
        cluster = connect(arguments[0])
        try:
            nodes = {node.name: dict(node.free) for node in cluster.nodes()}
        finally:
            cluster.close()
    except RayClusterError as error:
        problem = str(error)
    print(json.dumps({"nodes": nodes, "problem": problem}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
