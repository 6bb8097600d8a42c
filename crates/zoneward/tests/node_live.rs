//! `zoneward node` as a process of its own, in a network namespace of its own, on the embedded API by its socket.

mod cases;
mod features;
mod health;
mod iptables;
mod killed;
mod life;
mod live;
mod localhost;
pub(crate) mod place;
mod skew;
mod subset;
mod tenants;
mod traffic;
pub(crate) mod world;
mod zones;

use crate::addresses;
use crate::connect;
use crate::namespace;
use crate::net;
use crate::site;
