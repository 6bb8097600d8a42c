//! Tests of the plain values.

use super::*;

#[test]
fn comment_is_cut_at_a_letter_and_cannot_break_the_listing() {
    let long = "ü".repeat(100);
    assert_eq!(Comment::new(&long).as_str().len(), Comment::LONGEST);
    assert_eq!(Comment::new("a \"quoted\"\nline").as_str(), "a 'quoted' line");
    assert_eq!(Comment::new(&"a".repeat(129)).as_str().len(), 128);
}

#[test]
fn single_field_is_not_padded_and_concatenation_is() {
    assert_eq!(KeyBuilder::new().port(80).bytes().as_slice(), [0, 80]);
    let key = KeyBuilder::new().address([10, 0, 0, 1].into()).protocol(6).port(80).bytes();
    assert_eq!(key.as_slice(), [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
    let fields = [FieldType::Ipv4Addr, FieldType::InetProto, FieldType::InetService];
    assert_eq!(SetSpec::new(&fields).key_len(), key.len());
    assert_eq!(SetSpec::new(&[FieldType::InetService]).key_len(), 2);
}

#[test]
fn bytes_compare_alike_in_place_and_on_the_heap() {
    let short = Bytes::from([1u8; 22]);
    let long = Bytes::from([1u8; 23]);
    assert!(short < long);
    assert_eq!(Bytes::from(vec![7; 40]).as_slice(), [7; 40]);
    assert_eq!(std::mem::size_of::<Bytes>(), 24);
    assert_eq!(std::mem::size_of::<ElementValue>(), 48, "a node holds hundreds of thousands");
}

#[test]
fn rules_are_equal_whatever_their_handle() {
    let rule = NftRule::new(vec![Expr::Verdict(NftVerdict::Accept)], "x");
    let dumped = NftRule { handle: Some(7), ..rule.clone() };
    assert_eq!(rule, dumped);
}
