//! Protobuf bodies: `k8s\0` and an envelope. The input is the body.

use store::fuzzing;

/// A field of two bytes may be a long name in JSON; nothing else grows.
const MAX_GROWTH: usize = 64;

pub(crate) fn run(body: &[u8]) {
    let decoded = fuzzing::protobuf_object(body);
    assert_eq!(decoded, fuzzing::protobuf_object(body), "a body has two values");
    let Ok(object) = decoded else { return };
    assert!(object["kind"].is_string() && object["apiVersion"].is_string(), "no kind: {object}");
    let text = object.to_string();
    let bound = MAX_GROWTH * body.len() + 1_024;
    assert!(text.len() <= bound, "{} bytes became {} of JSON", body.len(), text.len());
    let again = fuzzing::strict_json(text.as_bytes()).map(|(value, _)| value);
    assert_eq!(again.as_ref(), Ok(&object), "the JSON of a protobuf body does not survive encoding");
    let by_type = fuzzing::request_body("application/vnd.kubernetes.protobuf", body);
    assert_eq!(by_type.as_ref(), Ok(&object), "the body of a request is read differently");
    // An unknown field of a newer client changes nothing: number 1000, a varint.
    let extended = [body, &[0xc0, 0x3e, 0x01]].concat();
    assert_eq!(fuzzing::protobuf_object(&extended).as_ref(), Ok(&object), "an unknown field is not ignored");
}
