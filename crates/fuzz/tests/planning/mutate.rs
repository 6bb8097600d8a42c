//! Breaks JSON: a value somewhere inside is replaced, dropped or doubled.

use model::random::Random;
use serde_json::{Value, json};

/// Changes something somewhere in a value.
pub fn mutate(value: &mut Value, random: &mut Random) {
    let deeper = random.below(6) > 0;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let key = map.keys().nth(random.below(map.len())).cloned().unwrap_or_default();
            if random.below(8) == 0 {
                map.remove(&key);
            } else if let Some(inner) = map.get_mut(&key) {
                mutate(inner, random);
            }
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let at = random.below(list.len());
            match random.below(8) {
                0 => drop(list.remove(at)),
                1 => list.push(list[at].clone()),
                _ => mutate(&mut list[at], random),
            }
        }
        Value::String(text) if deeper => *text = other_text(text, random),
        other => *other = other_value(random),
    }
}

fn other_text(text: &str, random: &mut Random) -> String {
    const TEXTS: &[&str] = &[
        "",
        " ",
        "None",
        "Local",
        "0",
        "-1",
        "10.0.0.0/0",
        "::/0",
        "255.255.255.255",
        "::",
        "::ffff:10.0.0.1",
        "fd00::/64",
        "10.96.0.9",
        "fd00:96::9",
        "zone-b",
        "node-b",
        "svc",
        "UDP",
        "Require",
        "Spill",
        "Prefer",
        "a=256",
        "=,=",
        "1e308",
        "9999999999999999999999",
        "\u{0}",
        "é\u{202e}",
        "2026-13-01T00:00:00Z",
        "ExternalName",
        "NodePort",
        "RequireZone",
        "99999",
        "/",
        "//",
        "a/b/c",
        "IPv6",
        "FQDN",
    ];
    match random.below(4) {
        0 => text.chars().rev().collect(),
        1 => text.repeat(random.below(30)),
        _ => TEXTS[random.below(TEXTS.len())].to_owned(),
    }
}

fn other_value(random: &mut Random) -> Value {
    match random.below(10) {
        0 => Value::Null,
        1 => json!([]),
        2 => json!({}),
        3 => json!(true),
        4 => json!(-1),
        5 => json!(0),
        6 => json!(u64::MAX),
        7 => json!(65_536),
        8 => json!(1.5e300),
        _ => json!("text"),
    }
}
