#!/usr/bin/env python3
"""Lint the launchd plists of a folder: well-formed, every key known and of launchd.plist(5)'s type, and the traps.

usage: plists.py FOLDER
"""

import plistlib
import re
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

# The keys of launchd.plist(5) that these plists may use. Another one is added here with its type when it is needed.
KEYS = {
    "AbandonProcessGroup": bool,
    "EnvironmentVariables": dict,
    "ExitTimeOut": int,
    "KeepAlive": dict,
    "Label": str,
    "ProcessType": str,
    "ProgramArguments": list,
    "RunAtLoad": bool,
    "StandardErrorPath": str,
    "ThrottleInterval": int,
    "Umask": int,
}
KEEP_ALIVE = {"SuccessfulExit": bool, "Crashed": bool}
PROCESS_TYPES = {"Background", "Standard", "Adaptive", "Interactive"}
# What somebody means who writes a mode of 022, 027 or 077 without thinking of plist integers being decimal.
OCTAL_LOOKALIKES = {22, 27, 77}


def types(table, known, where):
    for key, value in table.items():
        if key not in known:
            yield f"{where}: unknown key {key}"
        elif type(value) is not known[key]:
            yield f"{where}: {key} is {type(value).__name__}, not {known[key].__name__}"


def duplicates(xml):
    for table in ElementTree.fromstring(xml).iter("dict"):
        keys = [child.text for child in table if child.tag == "key"]
        for key in sorted({key for key in keys if keys.count(key) > 1}):
            yield f"{key} stands twice in one dict: the last one wins in silence"


def faults(path):
    xml = path.read_bytes()
    try:
        plist = plistlib.loads(xml)
    except Exception as error:
        yield f"no plist: {error}"
        return
    yield from duplicates(xml)
    yield from types(plist, KEYS, "top")
    if isinstance(plist.get("KeepAlive"), dict):
        yield from types(plist["KeepAlive"], KEEP_ALIVE, "KeepAlive")
    if f"{plist.get('Label')}.plist" != path.name:
        yield f"the label {plist.get('Label')!r} is not the file's name"

    arguments = plist.get("ProgramArguments") or []
    strings = [*arguments, *plist.get("EnvironmentVariables", {}).values(), plist.get("StandardErrorPath", "")]
    if not all(isinstance(string, str) for string in strings):
        yield "arguments and variables must be strings"
        return
    if not arguments or not arguments[0].startswith("/"):
        yield "the program needs an absolute path"
    for string in strings:
        if re.search(r"^~|\$|@[A-Z_]+@|\{\{", string):
            yield f"launchd expands nothing in {string!r}"
    if plist.get("Umask") in OCTAL_LOOKALIKES:
        yield f"Umask {plist['Umask']} looks octal; plist integers are decimal"
    if plist.get("ProcessType", "Standard") not in PROCESS_TYPES:
        yield f"unknown ProcessType {plist['ProcessType']}"


def notices_a_fault(path):
    """Whether the lint finds something in a copy with an unknown key, or it proves nothing."""
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / path.name
        broken.write_text(path.read_text().replace("<key>RunAtLoad</key>", "<key>RunAtLaod</key>"))
        return any(faults(broken))


def main():
    paths = sorted(Path(sys.argv[1]).glob("*.plist"))
    if not paths:
        sys.exit(f"no plist in {sys.argv[1]}")
    bad = False
    for path in paths:
        found = list(faults(path)) or ([] if notices_a_fault(path) else ["the lint does not notice an unknown key"])
        bad = bad or bool(found)
        print(f"plist {path.name}: {'; '.join(found) or 'ok'}")
    sys.exit(bad)


main()
