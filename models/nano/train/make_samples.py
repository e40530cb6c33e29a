#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cut a small held-out sample that may be passed on, and an example session.

    python make_samples.py --corpus corpus --out .

writes
    heldout_sample.bin   held-out files with permissive licences only
    heldout_sample.txt   every file of it, with package, licence and notices
    agent_session.txt    a transcript in the manner of an agent's session, whose
                         tool outputs are held-out files
"""
import argparse
import re
from pathlib import Path

from build_corpus import copyright_text

# Package, licence, and what its paths must (not) match.
CHOICE = [
    ("libpython3.11-minimal", "PSF-2.0", r"(?!.*/encodings/(cp|iso|euc))"),
    ("libpython3.11-stdlib", "PSF-2.0", r""),
    ("python3-django", "BSD-3-Clause", r".*/utils/"),
    ("python3-twisted", "Expat", r""),
    ("python3-werkzeug", "BSD-3-clause", r"(?!.*/routing/)"),
    ("python3-tornado", "Apache-2.0", r""),
    ("libssl-doc", "Apache-2.0", r""),
    ("openssl", "Apache-2.0", r""),
    ("libcurl4-doc", "curl", r""),
]

THREAD = "usr/lib/python3.11/concurrent/futures/thread.py"
NOPROXY = "usr/share/man/man3/CURLOPT_NOPROXY.3.gz"
SESSION = [
    """\
[user]
Our download service uses a ThreadPoolExecutor. When it is told to stop, it
sometimes hangs for minutes before the process ends. Please find out why, and
what we should call instead. Also, some hosts must not go through the proxy:
tell me how libcurl wants that list to be written.

[assistant]
I will first look at how the worker threads learn that they have to stop.

[tool] read_file path=concurrent/futures/thread.py lines=17-44
""", (THREAD, 17, 44), """\

[assistant]
At exit of the interpreter, _python_exit() puts one None into the queue of each
thread and then joins every thread. A thread that still has work in its queue
sees that None only after the work. Now the worker itself.

[tool] read_file path=concurrent/futures/thread.py lines=69-110
""", (THREAD, 69, 110), """\

[assistant]
So a worker ends only when it takes a None from the queue and _shutdown is set.
Everything that was submitted before it runs first. Next, submit and shutdown.

[tool] read_file path=concurrent/futures/thread.py lines=161-178,216-236
""", (THREAD, 161, 178), """\
    ...
""", (THREAD, 216, 236), """\

[assistant]
shutdown() has a keyword cancel_futures. With it, the queue is drained and every
pending future is cancelled, so that only the running calls are waited for.
Now the manual page about the proxy.

[tool] run command="man CURLOPT_NOPROXY"
""", (NOPROXY, 1, 10 ** 6), """\

[assistant]
Both answers are there.

1. The hang: the service calls shutdown(wait=True). Each thread works through
   everything in the queue before it takes the None that ends it. Call
   shutdown(wait=True, cancel_futures=True) instead: the queue is drained, the
   pending futures are cancelled, and only running downloads are waited for.
2. The list: names separated by commas, such as "example.com,::1,localhost". A
   name matches the domain and every host in it. A single * turns the proxy off
   for all hosts. Since 7.86.0 an address may be a network, "192.168.0.0/16".

[user]
Good. Show me the change to our stop() method.

[assistant]
""",
]


def read_index(corpus):
    data = (corpus / "heldout.bin").read_bytes()
    for line in (corpus / "heldout_index.tsv").read_text().splitlines():
        offset, size, _, package, path = line.split("\t")
        yield package, path, data[int(offset):int(offset) + int(size)]


def notice(root, package, licence):
    """The copyright line and the licence text of a package."""
    text = copyright_text(root, package)
    if licence == "PSF-2.0":
        start = text.index("PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2")
        return text[start:text.index("BEOPEN.COM LICENSE")].strip()
    stanzas = re.split(r"\n\n+", text)
    holder = next(s for s in stanzas if s.startswith("Files: *"))
    terms = next(s for s in stanzas
                 if re.search(rf"^License: {re.escape(licence)}\n .", s, re.M))
    holder = re.search(r"^Copyright:.*?(?=^\w|\Z)", holder, re.M | re.S)[0].strip()
    terms = re.search(rf"^License: {re.escape(licence)}\n( .*(\n|\Z))+", terms, re.M)[0].strip()
    return holder + "\n\n" + re.sub(r"^ \.?", "", terms, flags=re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    files = list(read_index(args.corpus))

    sample, table = b"", []
    for package, licence, pattern in CHOICE:
        for name, path, data in files:
            if name == package and re.match(pattern, "/" + path):
                table.append(f"{len(sample):>7} {len(data):>6}  {package:<22} {licence:<13} {path}")
                sample += data
    lines = ["The files of heldout_sample.bin, one after another, unchanged (manual pages:",
             "rendered to plain text).  All are from Debian 12.", "",
             f"{'offset':>7} {'bytes':>6}  {'package':<22} {'licence':<13} path", *table, ""]
    done = set()
    for package, licence, _ in CHOICE:
        text = notice(args.corpus / "root", package, licence)
        if text not in done:
            done.add(text)
            lines += ["=" * 72, f"{package}: {licence}", "=" * 72, text, ""]
    (args.out / "heldout_sample.bin").write_bytes(sample)
    (args.out / "heldout_sample.txt").write_text("\n".join(lines))

    contents = {path: data for _, path, data in files}
    session = ""
    for part in SESSION:
        if isinstance(part, str):
            session += part
        else:
            path, first, last = part
            rows = contents[path].decode("ascii").splitlines()
            session += "\n".join(rows[first - 1:last]).strip("\n") + "\n"
    (args.out / "agent_session.txt").write_text(session, "ascii")
    print(f"heldout_sample.bin {len(sample):,} bytes, agent_session.txt {len(session):,}")


if __name__ == "__main__":
    main()
