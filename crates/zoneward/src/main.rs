//! zoneward

fn main() {}
