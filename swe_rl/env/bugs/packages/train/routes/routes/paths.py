"""Shortest paths; roads map a place to its neighbours and distances."""

import heapq


def shortest_km(roads: dict, start: str, end: str):
    """Dijkstra's algorithm; None if the end cannot be reached."""
    heap = [(0, start)]
    done = set()
    while heap:
        km, place = heapq.heappop(heap)
        if place == end:
            return km
        done.add(place)
        push_neighbours(heap, roads, km, place, done)
    return None


def push_neighbours(heap, roads, km, place, done) -> None:
    """Adds the neighbours that are not done to the heap."""
    for other, step in roads.get(place, {}).items():
        if other in done:
            continue
        heapq.heappush(heap, (km + step, other))


def reachable(roads: dict, start: str) -> set:
    """All places that can be reached, the start included."""
    found = {start}
    queue = [start]
    for place in queue:
        for other in roads.get(place, {}):
            if other not in found:
                found.add(other)
                queue.append(other)
    return found


def fewest_roads(roads: dict, start: str, end: str):
    """How many roads the path with the fewest has, None without one."""
    known = {start: 0}
    queue = [start]
    for place in queue:
        for other in roads.get(place, {}):
            if other not in known:
                known[other] = known[place] + 1
                queue.append(other)
    return known.get(end)


def path_km(roads: dict, path: list):
    """The length along a path, None if a road is missing."""
    total = 0
    for start, end in zip(path, path[1:]):
        if end not in roads.get(start, {}):
            return None
        total = total + roads[start][end]
    return total


def is_loop(path: list) -> bool:
    """Whether a path of several places ends where it starts."""
    if len(path) < 2:
        return False
    return path[0] == path[-1]


def repeats_place(path: list) -> bool:
    return len(set(path)) < len(path)


def detour_km(direct: int, taken: int) -> int:
    """How much longer the taken way is, never less than zero."""
    extra = taken - direct
    return max(extra, 0)


def turn_back(path: list) -> list:
    """There and back again, without naming the far end twice."""
    if not path:
        return []
    back = path[::-1]
    return path + back[1:]


def all_connected(roads: dict) -> bool:
    """Whether each place can be reached from each place."""
    names = set(roads)
    return all(reachable(roads, name) >= names for name in roads)


def way_count(choices: list) -> int:
    """How many ways there are with so many choices at each fork."""
    ways = 1
    for choice in choices:
        if choice < 2:
            continue
        ways = ways * choice
    return ways
