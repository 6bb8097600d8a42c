//! CEL expressions of admission policies. The input is the expression.

use serde_json::{Value, json};
use std::sync::LazyLock;
use store::fuzzing;

static OBJECT: LazyLock<Value> = LazyLock::new(|| {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"clusterIPs": ["10.96.0.1", "2001:db8::1"], "cidrs": ["10.96.0.0/16"],
            "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]}})
});

pub(crate) fn run(input: &[u8]) {
    let Ok(source) = std::str::from_utf8(input) else { return };
    let compiles = fuzzing::compiles_cel(source);
    let first = fuzzing::evaluate_cel(source, &OBJECT);
    assert!(compiles || first.is_err(), "an expression that does not compile has a value: {first:?}");
    let again = fuzzing::evaluate_cel(source, &OBJECT);
    assert_eq!(first.as_ref().ok(), again.as_ref().ok(), "an expression has two values");
    if let Err(error) = first {
        // An error goes into a response.
        assert!(error.len() <= 16 * source.len() + 4_096, "an error of {} bytes", error.len());
    }
}
