//! Several machines without Kubernetes: machines of namespaces with a router between them, `zoneward up` in the first and
//! `zoneward join` in the others.

mod boxes;
mod joined;
mod killed;
mod ledger;
mod proxies;
mod refused;
mod renewal;
mod snapshot;
mod without_api;

use crate::namespace;
use crate::net;
