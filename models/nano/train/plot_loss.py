#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw loss_curve.csv as an SVG picture.

    python plot_loss.py loss_curve.csv loss_curve.svg
"""
import csv
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 62, 20, 44, 52
STYLE = ("text{font:13px sans-serif;fill:#333}.grid{stroke:#ddd}.axis{stroke:#333}"
         ".train{stroke:#9db8d9;fill:none;stroke-width:1.2}"
         ".held{stroke:#c0392b;fill:none;stroke-width:2}"
         ".switch{stroke:#777;stroke-dasharray:4 4}")


def main(source, target):
    with open(source) as f:
        rows = list(csv.DictReader(f))
    train = [(int(r["tokens"]) / 1e6, float(r["train_loss"])) for r in rows]
    held = [(int(r["tokens"]) / 1e6, float(r["heldout_loss"])) for r in rows
            if r["heldout_loss"]]
    switches = [(int(b["tokens"]) / 1e6, b["seq_len"]) for a, b in zip(rows, rows[1:])
                if a["seq_len"] != b["seq_len"]]
    right = train[-1][0]
    low = math.floor(min(y for _, y in train + held) * 10) / 10
    high = 2.0

    def x(v):
        return LEFT + v / right * (WIDTH - LEFT - RIGHT)

    def y(v):
        return TOP + (high - min(v, high)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def path(points, name):
        steps = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        return f'<polyline class="{name}" points="{steps}"/>'

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
           f"<style>{STYLE}</style>", '<rect width="100%" height="100%" fill="#fff"/>']
    for i in range(round((high - low) * 10) + 1):
        if i % 2 == 0:
            v = low + i / 10
            out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
                       f'y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
                       f'<text x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.1f}</text>')
    step = 20 if right > 60 else 5
    for v in range(0, int(right) + 1, step):
        out.append(f'<text x="{x(v):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{v}</text>')
    for v, length in switches:
        out.append(f'<line class="switch" x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{TOP}" '
                   f'y2="{HEIGHT - BOTTOM}"/>'
                   f'<text x="{x(v) + 6:.1f}" y="{TOP + 14}">length {length} from here</text>')
    out += [path(train, "train"), path(held, "held"),
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" '
            f'y2="{HEIGHT - BOTTOM}"/>',
            f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>',
            f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
            "million bytes trained on</text>",
            f'<text x="{LEFT}" y="24">loss, nats per byte (values above {high:.1f} cut)</text>',
            f'<line class="train" x1="{WIDTH - 250}" x2="{WIDTH - 226}" y1="20" y2="20"/>'
            f'<text x="{WIDTH - 220}" y="24">training</text>'
            f'<line class="held" x1="{WIDTH - 140}" x2="{WIDTH - 116}" y1="20" y2="20"/>'
            f'<text x="{WIDTH - 110}" y="24">held out</text>', "</svg>"]
    with open(target, "w") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
