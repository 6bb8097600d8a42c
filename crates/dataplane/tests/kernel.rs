//! Tests on the real kernel, each in namespaces of its own.

mod conntrack;
mod nftables;

use crate::flows;
use crate::refusals;
use crate::sample;
