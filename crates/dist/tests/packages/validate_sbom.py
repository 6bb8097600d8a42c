"""Validates a CycloneDX document against the schema of its version, formats of strings included."""

import json
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = open(sys.argv[1], encoding="utf-8").read()
version = SchemaVersion.from_version(json.loads(text)["specVersion"])
error = JsonStrictValidator(version).validate_str(text)
if error:
    sys.exit(f"{sys.argv[1]}: {error}")
print("valid", version.to_version())
