//! Breaks JSON: a value somewhere inside is replaced, dropped or doubled.

use serde_json::{Value, json};

/// Numbers out of a seed, always the same ones.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; zero where there is none.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Changes something somewhere in a value.
pub fn mutate(value: &mut Value, dice: &mut Dice) {
    let deeper = dice.below(6) > 0;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let key = map.keys().nth(dice.below(map.len())).cloned().unwrap_or_default();
            if dice.below(8) == 0 {
                map.remove(&key);
            } else if let Some(inner) = map.get_mut(&key) {
                mutate(inner, dice);
            }
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let at = dice.below(list.len());
            match dice.below(8) {
                0 => drop(list.remove(at)),
                1 => list.push(list[at].clone()),
                _ => mutate(&mut list[at], dice),
            }
        }
        Value::String(text) if deeper => *text = other_text(text, dice),
        other => *other = other_value(dice),
    }
}

fn other_text(text: &str, dice: &mut Dice) -> String {
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
    match dice.below(4) {
        0 => text.chars().rev().collect(),
        1 => text.repeat(dice.below(30)),
        _ => TEXTS[dice.below(TEXTS.len())].to_owned(),
    }
}

fn other_value(dice: &mut Dice) -> Value {
    match dice.below(10) {
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
