"""An export of spans on standard input, by the messages that OpenTelemetry publishes, as JSON. Unknown fields are an error."""

import sys

from google.protobuf.json_format import MessageToJson
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def check(message):
    unknown = [field.field_number for field in UnknownFieldSet(message)]
    if unknown:
        sys.exit(f"{message.DESCRIPTOR.full_name} has no fields {unknown}")
    for field, value in message.ListFields():
        if field.message_type:
            for each in value if field.is_repeated else [value]:
                check(each)


request = ExportTraceServiceRequest.FromString(sys.stdin.buffer.read())
check(request)
print(MessageToJson(request))
