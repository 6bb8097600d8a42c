//! Responses of an API server in protobuf: frames of a watch, lists and objects. The input is the body of a response.

use model::protobuf::{self, FRAME_HEADER, MAX_FRAME};
use model::{Interner, Object, parse};
use store::fuzzing;

pub(crate) fn run(body: &[u8]) {
    let mut rest = body;
    while let Ok(Some(length)) = protobuf::frame_length(rest) {
        assert!(length <= MAX_FRAME);
        let Some(frame) = rest.get(FRAME_HEADER..FRAME_HEADER + length) else { break };
        if let Ok((_, object)) = protobuf::watch_event(frame) {
            check_response(object);
        }
        rest = &rest[FRAME_HEADER + length..];
    }
    check_response(body);
}

fn check_response(content: &[u8]) {
    let Ok(envelope) = protobuf::envelope(content) else { return };
    check_message(envelope.api_version, envelope.kind, envelope.raw);
    let _ = protobuf::status(envelope.raw);
    if let Ok(list) = protobuf::list(envelope.raw) {
        let kind = envelope.kind.trim_end_matches("List");
        list.items.iter().for_each(|item| check_message(envelope.api_version, kind, item));
    }
    check_other_decoder(content, parsed(envelope.api_version, envelope.kind, envelope.raw));
}

fn parsed(api_version: &str, kind: &str, raw: &[u8]) -> Option<Object> {
    let (object, notices) = parse::message(api_version, kind, raw, &mut Interner::default());
    assert!(notices.iter().all(|notice| !notice.to_string().is_empty()));
    object
}

fn check_message(api_version: &str, kind: &str, raw: &[u8]) {
    let object = parsed(api_version, kind, raw);
    assert_eq!(object, parsed(api_version, kind, raw), "a message has two objects");
    // An unknown field of a newer server changes nothing: number 1000, a varint.
    let extended = [raw, &[0xc0, 0x3e, 0x01]].concat();
    if object.is_some() {
        assert_eq!(object, parsed(api_version, kind, &extended), "an unknown field is not ignored");
        assert!(protobuf::head(raw).is_ok(), "an object without a readable head");
    }
}

/// Where the table-driven decoder of requests takes a message, and its JSON is an object, both are the same.
fn check_other_decoder(content: &[u8], object: Option<Object>) {
    let Ok(value) = fuzzing::protobuf_object(content) else { return };
    if !["Service", "EndpointSlice", "Node"].iter().any(|kind| value["kind"] == *kind) {
        return;
    }
    if let (Some(by_json), _) = parse::object(&value, &mut Interner::default()) {
        assert_eq!(Some(by_json), object, "JSON and protobuf are parsed differently: {value}");
    }
}
