"""Writes what a package of hotrow is made from: sbom.spdx.json (SPDX 2.3), and the licences of code
that is compiled in.

    cmake/sbom.py VERSION FOLDER BINARY...

Packages are those of the system: that of each library that a binary loads, and those of
packages.txt that are there. Without dpkg libraries are named by their files.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMPILED_IN = ("nlohmann-json3-dev", "libcpp-httplib-dev")  # headers alone


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def libraries_of(binaries):
    """The files that the binaries load."""
    found = re.findall(r"=> (/\S+)", "".join(output_of("ldd", binary) for binary in binaries))
    own = {os.path.realpath(binary) for binary in binaries}
    return sorted({path for path in found if os.path.realpath(path) not in own})


def owners_of(paths):
    """The packages of files, or the files' names; /lib may be a link to /usr/lib."""
    spellings = {}
    for path in paths:
        real = os.path.realpath(path)
        for spelling in (path, real, real.removeprefix("/usr"), "/usr" + path):
            spellings[spelling] = path
    owners = {}
    for line in output_of("dpkg", "-S", *spellings).splitlines():
        match = re.match(r"([^:\s,]+)(?::\w+)?: (/.*)", line)
        if match and match.group(2) in spellings:
            owners[spellings[match.group(2)]] = match.group(1)
    return sorted({owners.get(path, os.path.basename(path)) for path in paths})


def versions_of(names):
    """Version and architecture of the packages that are installed."""
    lines = output_of("dpkg-query", "-W", "-f",
                      "${db:Status-Status} ${Package} ${Version} ${Architecture}\\n", *names)
    parts = [line.split() for line in lines.splitlines()]
    return {part[1]: (part[2], part[3]) for part in parts if part[0] == "installed"}


def package(name, version="", architecture=""):
    """A package as SPDX has it."""
    out = {"SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name), "name": name,
           "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
           "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
           "copyrightText": "NOASSERTION"}
    if version:
        out["versionInfo"] = version
        out["externalRefs"] = [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
            "referenceLocator": f"pkg:deb/debian/{name}@{version}?arch={architecture}"}]
    try:
        with open(f"/usr/share/doc/{name}/copyright", encoding="utf-8", errors="replace") as file:
            licences = sorted(set(re.findall(r"^License: *(\S.*)$", file.read(), re.M)))
            if licences:
                out["licenseComments"] = "in Debian's words: " + ", ".join(licences)
    except OSError:
        pass
    return out


def main():
    version, folder, binaries = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(os.path.join(SOURCE, "packages.txt"), encoding="utf-8") as file:
        names = [line.strip() for line in file if line.strip() and line[0] not in "#["]
    loaded = owners_of(libraries_of(binaries))
    versions = versions_of([*loaded, *names])
    built_with = [name for name in names if name in versions]
    packages = {name: package(name, *versions.get(name, ())) for name in [*loaded, *built_with]}
    own = {**package("hotrow"), "versionInfo": version, "licenseConcluded": "Apache-2.0",
           "licenseDeclared": "Apache-2.0"}
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", own)]
    relations += [(own["SPDXID"], "DEPENDS_ON", packages[name]) for name in loaded]
    for name in built_with:
        kind = "CONTAINS" if name in COMPILED_IN else "HAS_PREREQUISITE"
        relations.append((own["SPDXID"], kind, packages[name]))
    created = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    text = json.dumps([own, *packages.values()], sort_keys=True)
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"hotrow-{version}",
        "documentNamespace": "https://hotrow.invalid/spdx/"
                             + hashlib.sha256(text.encode()).hexdigest(),
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
            "creators": ["Tool: hotrow cmake/sbom.py"]},
        "packages": [own, *packages.values()],
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other["SPDXID"]}
            for one, kind, other in relations],
    }
    os.makedirs(os.path.join(folder, "licenses"), exist_ok=True)
    with open(os.path.join(folder, "sbom.spdx.json"), "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    for name in COMPILED_IN:
        copyright_file = f"/usr/share/doc/{name}/copyright"
        if name in built_with and os.path.exists(copyright_file):
            shutil.copyfile(copyright_file, os.path.join(folder, "licenses", name))


if __name__ == "__main__":
    main()
