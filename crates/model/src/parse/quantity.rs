//! Kubernetes quantities (`3920m`, `4`, `1.5`, `2k`, `1e3`) as thousandths.

/// Factors relative to 1, as (suffix, numerator, denominator).
const SUFFIXES: &[(&str, u128, u128)] = &[
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
];

/// The amount in thousandths, rounded up as in Kubernetes; `None` if negative or malformed.
pub fn millis(text: &str) -> Option<u64> {
    let text = text.trim();
    let number = text.strip_prefix('+').unwrap_or(text);
    let (digits, numerator, denominator) = split_suffix(number)?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let mantissa: u128 = format!("{whole}{fraction}").parse().ok()?;
    let places = u32::try_from(fraction.len()).ok()?;
    let over = mantissa.checked_mul(numerator)?.checked_mul(1_000)?;
    let under = denominator.checked_mul(10u128.checked_pow(places)?)?;
    u64::try_from(over.div_ceil(under)).ok()
}

fn split_suffix(text: &str) -> Option<(&str, u128, u128)> {
    for (suffix, numerator, denominator) in SUFFIXES {
        if let Some(digits) = text.strip_suffix(suffix) {
            return Some((digits, *numerator, *denominator));
        }
    }
    let Some((digits, exponent)) = text.split_once(['e', 'E']) else { return Some((text, 1, 1)) };
    let exponent: i32 = exponent.parse().ok()?;
    let factor = 10u128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (digits, 1, factor) } else { (digits, factor, 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_amounts_are_read_in_thousandths() {
        for (text, amount) in [
            ("1000m", Some(1_000)),
            ("4", Some(4_000)),
            ("1.5", Some(1_500)),
            (".5", Some(500)),
            ("2k", Some(2_000_000)),
            ("1Ki", Some(1_024_000)),
            ("1e3", Some(1_000_000)),
            ("100E-3", Some(100)),
            ("1n", Some(1)),
            ("0", Some(0)),
            ("-1", None),
            ("", None),
            ("m", None),
            ("1.2.3", None),
            ("1e99", None),
            ("9999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(millis(text), amount, "{text:?}");
        }
    }
}
