#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the training corpus from packages that Debian 12 ships.

Every package is fetched with `apt-get download` and unpacked with `dpkg -x`
(nothing is installed, root is not needed).  Python sources are taken as they
are (test suites left out), manual pages are rendered to plain text with groff.
Whole files go either to the training text or to the held-out text (about 2 %),
by a hash of package and path.  Files of one package stay together, by path.

    python3 build_corpus.py --out corpus

writes, under corpus/:
    train.bin, heldout.bin            the two texts, raw bytes
    train_index.tsv, heldout_index.tsv
                                      offset, size, kind, package, path
    packages.tsv                      package, version, licences, bytes by kind
"""
import argparse
import concurrent.futures
import gzip
import hashlib
import os
import re
import subprocess
from pathlib import Path

PYTHON_PACKAGES = """
libpython3.11-minimal libpython3.11-stdlib python3-distutils python3-lib2to3
python3-tk idle-python3.11
python3-django python3-sympy python3-mpmath python3-twisted python3-numpy
python3-networkx python3-matplotlib python3-sqlalchemy
python3-docutils python3-sphinx python3-jinja2 python3-babel
python3-pip python3-setuptools python3-pkg-resources python3-requests
python3-urllib3 python3-idna python3-chardet python3-certifi
python3-werkzeug python3-flask python3-click python3-rich
python3-prompt-toolkit python3-textual python3-httpx python3-anyio
python3-pydantic python3-fastapi python3-starlette python3-uvicorn
python3-tornado python3-aiohttp python3-gevent python3-zmq python3-websockets
python3-trio python3-yaml python3-ruamel.yaml python3-jsonschema
python3-pexpect python3-fabric python3-invoke python3-virtualenv
python3-ipython python3-notebook python3-jedi python3-parso
python3-pytest python3-hypothesis python3-attr python3-coverage python3-nose2
python3-testtools python3-astroid pylint black python3-isort python3-flake8
python3-bandit python3-dulwich
mercurial mercurial-common python3-celery python3-kombu
python3-dnspython python3-cryptography python3-paramiko python3-openssl
python3-pil python3-lxml python3-bs4 python3-html5lib python3-feedparser
python3-pycparser python3-ply python3-pyparsing python3-mako python3-markdown
python3-docker python3-psutil python3-gpg python3-apt python3-debian
python3-gi python3-dateutil python3-tz python3-keyring
python3-pymysql python3-psycopg2 python3-peewee python3-redis python3-pymongo
python3-botocore python3-boto3 python3-acme python3-certbot
scons borgbackup duplicity mitmproxy
git-cola reportbug
""".split()

MANUAL_PACKAGES = """
manpages manpages-dev git-man coreutils bash openssh-client openssh-server
util-linux bsdutils mount login passwd sudo cron systemd systemd-container
udev tar rsync curl wget libcurl4-doc perl perl-doc perl-modules-5.36
libssl-doc openssl ncurses-doc ncurses-bin libncurses-dev libx11-doc
libarchive-dev libevent-dev libbsd-dev libpcap-dev liburing-dev libaio-dev
libcap-dev libpam-doc libzmq3-dev libelf-dev libtiff-doc libgnutls28-dev
tcl8.6-doc tk8.6-doc postgresql-client-15 postgresql-15 mariadb-client
sqlite3 ffmpeg cmake cmake-data ninja-build make gdb
strace ltrace valgrind binutils-common gcc-12 llvm-14 clang-14 bison flex m4
autoconf automake libtool texinfo groff groff-base mandoc man-db
gawk grep sed findutils diffutils patch less procps psmisc iputils-ping
net-tools iproute2 iptables nftables iw wpasupplicant hostapd
network-manager nmap tcpdump tshark wireshark-common lsof rsyslog logrotate
apache2 haproxy unbound bind9 bind9-utils bind9-dnsutils dnsmasq-base
isc-dhcp-client openvpn postfix exim4-base samba samba-common smbclient slapd
ldap-utils nfs-common xfsprogs btrfs-progs e2fsprogs mdadm lvm2
cryptsetup-bin podman buildah skopeo docker.io qemu-system-common qemu-utils
libvirt-clients tmux screen zsh-common mksh vim-common imagemagick-6-common
xterm xserver-xorg-core subversion cvs varnish apt apt-utils
dpkg dpkg-dev debhelper devscripts lintian rustc cargo
libdbi-perl libmoose-perl libwww-perl libmojolicious-perl
""".split()

HELD_OUT_ONE_IN = 50
MIN_BYTES, MAX_BYTES = 256, 256 * 1024
TESTS = re.compile(r"/tests?/")
OVERSTRIKE = re.compile(r".\x08")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def download(packages, folder):
    """Fetch the packages that are not there yet; report those apt lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in packages:
        if not list(folder.glob(f"{name}_*.deb")):
            done = subprocess.run(["apt-get", "-q", "download", name], cwd=folder,
                                  capture_output=True, text=True)
            if done.returncode:
                print(f"left out {name}: {done.stderr.strip().splitlines()[-1]}")


def unpack(deb, root):
    """Unpack one .deb below root, unless done before; return its folder."""
    target = root / deb.name.split("_")[0]
    if not target.exists():
        part = target.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg", "-x", deb, part], check=True)
        part.rename(target)
    return target


def render(path):
    """A manual page as plain text, 78 columns wide."""
    source = gzip.decompress(path.read_bytes())
    if source.startswith(b".so "):
        return b""
    done = subprocess.run(
        ["groff", "-k", "-Kutf8", "-t", "-rLL=78n", "-mandoc", "-Tascii", "-P-cbou"],
        input=source, capture_output=True, timeout=120)
    text = ESCAPE.sub("", OVERSTRIKE.sub("", done.stdout.decode("ascii", "replace")))
    return text.strip("\n").encode() + b"\n"


def copyright_text(root, package):
    """The copyright file of a package, by the links to another package's."""
    for _ in range(3):
        folder = root / package / "usr/share/doc" / package
        if folder.is_symlink():
            package = folder.readlink().name
        elif (folder / "copyright").is_symlink():
            package = (folder / "copyright").readlink().parent.name
        elif (folder / "copyright").is_file():
            return (folder / "copyright").read_text("utf-8", "replace")
    return ""


def licences(root, package):
    """The licence names of a machine-readable copyright file, else those of the
    well-known texts that it holds or points at."""
    text = copyright_text(root, package)
    names = set()
    if re.search(r"^Format:", text, re.M):
        found = re.findall(r"^License:[ \t]*(\S.*)$", text, re.M)
        names = {n.strip() for n in found if len(n) <= 60}
    if not names:
        known = {"PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2": "PSF-2.0",
                 "Redistribution and use in source and binary forms": "BSD-style",
                 "Permission is hereby granted, free of charge": "MIT-style"}
        plain = " ".join(text.split())
        names = {name for words, name in known.items() if words in plain}
        names |= set(re.findall(r"common-licenses/([\w.-]*\w)", text))
    return "; ".join(sorted(names)) or "see the copyright file"


def collect(tree, kinds):
    """(kind, path) of the Python sources and the manual pages of a package."""
    if "python" in kinds:
        for path in sorted(tree.rglob("*.py")):
            if (path.is_file() and not path.is_symlink()
                    and not TESTS.search(path.as_posix())):
                yield "python", path
    for path in sorted(tree.glob("usr/share/man/man[1-9]/*.gz")):
        if path.is_file() and not path.is_symlink():
            yield "manual", path


def held_out(package, path):
    digest = hashlib.sha256(f"{package}/{path}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


def read(job):
    kind, path = job
    try:
        data = path.read_bytes() if kind == "python" else render(path)
        data.decode("utf-8")
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return b""
    return data if MIN_BYTES <= len(data) <= MAX_BYTES else b""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out.resolve()
    packages = list(dict.fromkeys(PYTHON_PACKAGES + MANUAL_PACKAGES))
    root = out / "root"
    download(packages, out / "debs")

    names = ("train", "heldout")
    text = {n: open(out / f"{n}.bin", "wb") for n in names}
    index = {n: open(out / f"{n}_index.tsv", "w") for n in names}
    table = open(out / "packages.tsv", "w")
    table.write("package\tversion\tlicences\tpython bytes\tmanual bytes\n")
    seen = set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for package in packages:
            debs = sorted((out / "debs").glob(f"{package}_*.deb"))
            if not debs:
                continue
            tree = unpack(debs[-1], root)
            kinds = {"python"} if package in PYTHON_PACKAGES else set()
            jobs = list(collect(tree, kinds))
            size = {"python": 0, "manual": 0}
            for (kind, path), data in zip(jobs, pool.map(read, jobs)):
                digest = hashlib.sha256(data).digest()
                if not data or digest in seen:
                    continue
                seen.add(digest)
                inside = path.relative_to(tree).as_posix()
                name = "heldout" if held_out(package, inside) else "train"
                index[name].write(f"{text[name].tell()}\t{len(data)}\t{kind}"
                                  f"\t{package}\t{inside}\n")
                text[name].write(data)
                size[kind] += len(data)
            version = subprocess.run(["dpkg-deb", "-f", debs[-1], "Version"],
                                     capture_output=True, text=True, check=True)
            if sum(size.values()):
                table.write(f"{package}\t{version.stdout.strip()}\t"
                            f"{licences(root, package)}\t{size['python']}"
                            f"\t{size['manual']}\n")
    for name in names:
        print(f"{name}: {text[name].tell():,} bytes")


if __name__ == "__main__":
    main()
