#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What made the model in this folder, from nothing but Debian's and PyPI's
# packages. Takes most of a day on 2 cores; a stopped run goes on where it was.
# The end of training was brought forward three times, hence four legs.
set -euo pipefail
cd "$(dirname "$0")"

python3 -m venv .venv
.venv/bin/pip install -q -r requirements.txt
python=.venv/bin/python
$python build_corpus.py --out corpus
train=("$python" train.py --corpus corpus --out run --seed 1 --lr 1.2e-2
  --adam-lr 6e-3 --eval-every 100)
"${train[@]}" --steps 6000 --stop-at 1548
"${train[@]}" --steps 2600 --decay 0.404 --long-part 0.2 --stop-at 1731
"${train[@]}" --steps 2300 --decay 0.298 --long-part 0.174 --stop-at 1950
"${train[@]}" --steps 2080 --decay 0.1224 --long-part 0.0865
$python check_export.py --model run --text corpus/heldout.bin
$python eval.py --model run --corpus corpus --out run/eval.json
$python plot_loss.py run/loss_curve.csv run/loss_curve.svg
$python make_samples.py --corpus corpus --out run
