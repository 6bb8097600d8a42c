//! Request targets of the embedded API: path, query, selectors, continue tokens. The input is `PATH?QUERY`.

use serde_json::{Value, json};
use std::sync::LazyLock;
use store::fuzzing;

static OBJECT: LazyLock<Value> = LazyLock::new(
    || json!({"metadata": {"name": "web", "namespace": "default", "labels": {"app": "web", "tier": "3"}}}),
);

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let decoded = fuzzing::percent_decoded(text);
    // A byte that is not UTF-8 becomes one character of three bytes.
    assert!(decoded.len() <= 3 * text.len(), "decoding made {} bytes of {}", decoded.len(), text.len());
    let encoded: String = decoded.bytes().map(|byte| format!("%{byte:02X}")).collect();
    assert_eq!(fuzzing::percent_decoded(&encoded), decoded, "a text does not survive percent-encoding");
    let first = fuzzing::parse_request(path, query, &OBJECT);
    let slashes = fuzzing::parse_request(&format!("/{}/", path.trim_matches('/')), query, &OBJECT);
    assert_eq!(first.is_ok(), slashes.is_ok(), "slashes at the ends change what is served");
    let Ok((shown, _)) = first else { return };
    assert!(
        shown.len() <= 16 * path.len() + 256,
        "a path of {} bytes is shown with {}",
        path.len(),
        shown.len()
    );
}
