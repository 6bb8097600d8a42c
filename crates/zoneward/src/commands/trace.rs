//! `zoneward trace`: where traffic would go, and why.

pub(super) mod dns;
pub(super) mod http;
pub(super) mod packet;
pub(super) mod select;
