"""Part of times.sh: shares of self time of a program's own functions, sampled and recorded, side by side."""

import bisect
import collections
import json
import re
import subprocess
import sys

program, rows = sys.argv[1], int(sys.argv[2])

# Where the code of the program's file is in its address space.
segments = []
for line in subprocess.run(["readelf", "-lW", program], capture_output=True, text=True, check=True).stdout.splitlines():
    load = re.match(r"\s+LOAD\s+(0x\w+) (0x\w+) 0x\w+ (0x\w+)", line)
    if load:
        segments.append([int(number, 16) for number in load.groups()])

functions = []
name = program.rsplit("/", 1)[-1]
for line in open("symbols"):
    found = re.match(r"\s*\d+\s+(\w+)\s+(\d+)\s+(\w+)\s+(.*) \[(.*)\]$", line)
    if found and found[3] in ("Both", "Entry", "None") and found[5] == name:
        functions.append((int(found[1], 16), int(found[2]), found[4]))
functions.sort()
starts = [function[0] for function in functions]


def function_at(address):
    at = bisect.bisect_right(starts, address) - 1
    if at >= 0 and address < functions[at][0] + functions[at][1]:
        return functions[at][2]
    return "(none)"


sampled = collections.Counter()
maps = []
for line in open("samples"):
    mapped = re.search(r"PERF_RECORD_MMAP2 .*\[(0x\w+)\((0x\w+)\) @ (0x\w+|0) .*\]: r-xp (.*)", line)
    if mapped:
        start, size, offset = (int(number, 16) for number in mapped.groups()[:3])
        if start < 1 << 63:
            maps = [old for old in maps if old[3] == mapped[4] or old[0] != start]
            maps.append((start, start + size, offset, mapped[4]))
        continue
    hit = re.match(r"\s*cpu-clock\S*\s+([0-9a-f]+)", line)
    if not hit:
        continue
    address = int(hit[1], 16)
    for start, end, offset, path in reversed(maps):
        if start <= address < end:
            if path == program:
                at = address - start + offset
                for file_offset, virtual, size in segments:
                    if file_offset <= at < file_offset + size:
                        sampled[function_at(at - file_offset + virtual)] += 1
            break


def of_report(file):
    own = {function[2] for function in functions}
    times = collections.Counter()
    for row in json.load(open(file)):
        if row["name"] in own and row["module"] == program:
            times[row["name"]] += row["self_ns"]
    return times


def shares(times):
    whole = sum(times.values()) or 1
    return {name: 100 * time / whole for name, time in times.items()}


sampled, corrected, raw = shares(sampled), shares(of_report("corrected")), shares(of_report("raw"))
names = set(sampled) | set(corrected) | set(raw)
print(f"{'':32} {'perf':>7} {'hodo':>7} {'beside':>7} {'raw':>7} {'beside':>7}")
largest = sorted(names, key=lambda name: -max(sampled.get(name, 0), corrected.get(name, 0), raw.get(name, 0)))
for name in largest[:rows]:
    is_share, now, then = (times.get(name, 0) for times in (sampled, corrected, raw))
    print(f"{name[:32]:32} {is_share:7.2f} {now:7.2f} {now - is_share:+7.2f} {then:7.2f} {then - is_share:+7.2f}")
for title, times in ("corrected", corrected), ("raw", raw):
    worst = max(names, key=lambda name: abs(times.get(name, 0) - sampled.get(name, 0)))
    print(f"{title}: at most {abs(times.get(worst, 0) - sampled.get(worst, 0)):.1f} percentage points beside perf ({worst})")
