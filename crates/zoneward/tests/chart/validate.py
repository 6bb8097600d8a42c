"""Validates objects strictly against the schemas of Kubernetes; an object without a schema is a problem, too.

Reads a JSON list of {"set", "version", "object"} and prints one line per problem.
"""
import functools
import json
import sys

from kubernetes_validate import utils

# Each object would read the definitions again.
utils.schema_contents = functools.lru_cache(maxsize=None)(utils.schema_contents)

for row in json.load(sys.stdin):
    try:
        utils.validate(row["object"], row["version"], strict=True)
    except utils.ValidationError as error:
        path = ".".join(str(step) for step in error.path)
        print(f"{row['set']}: {utils.kn(row['object'])}: {path}: {error.message}")
    except (utils.SchemaNotFoundError, utils.InvalidSchemaError, utils.VersionNotSupportedError) as error:
        print(f"{row['set']}: {utils.kn(row['object'])}: {error.message}")
