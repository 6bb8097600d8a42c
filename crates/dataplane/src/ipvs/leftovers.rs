//! What mode ipvs leaves to another mode: virtual servers whose connections have not ended, and the routes that these need.
//!
//! ```text
//! rules of the new mode are in force -> servers without connections go, others get no new ones
//!                                    -> other ports of their addresses are refused
//!                                    -> when the last connection has ended: nothing is left
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::apply::{read_error, send, send_routes};
use super::backend::BackendTime;
use super::diff::{RouteDiff, ServerDiff, Terminating, diff_server};
use super::kernel::{IpvsKernel, read_routes, read_servers};
use super::message::{VirtualServer, VirtualServerKey};
use super::route::LocalRoute;
use super::{guard, interface};
use crate::backend::{BackendError, CleanupItem, PreviousMode};
use crate::nftables::Kernel;

/// The virtual servers and routes of mode ipvs on a node that runs another mode.
pub struct IpvsLeftovers {
    nft: Box<dyn Kernel + Send>,
    kernel: Box<dyn IpvsKernel + Send>,
    time: BackendTime,
    terminating: Terminating,
}

impl IpvsLeftovers {
    pub fn new(nft: Box<dyn Kernel + Send>, kernel: Box<dyn IpvsKernel + Send>, time: BackendTime) -> Self {
        Self { nft, kernel, time, terminating: Terminating::default() }
    }
}

impl PreviousMode for IpvsLeftovers {
    fn retire(&mut self) -> Result<Option<Vec<CleanupItem>>, BackendError> {
        let routes = read_routes(&mut *self.kernel).map_err(read_error)?;
        let ours = |_: &VirtualServerKey, server: &VirtualServer| server.is_ours();
        let held = read_servers(&mut *self.kernel, ours).map_err(read_error)?;
        let (now, mut diff) = ((self.time)(), ServerDiff::default());
        for (key, server) in &held {
            diff_server(&mut diff, key, Some(server), None, true, &self.terminating.is_over(now));
        }
        let route_of = |ip: &IpAddr| routes.iter().find(|route| route.range.contains(ip)).copied();
        let needed: BTreeSet<LocalRoute> = diff
            .lingering
            .iter()
            .filter_map(|key| Some(LocalRoute { range: key.address.into(), ..route_of(&key.address)? }))
            .collect();
        let addresses: BTreeSet<IpAddr> = needed.iter().map(|route| route.range.addr()).collect();
        guard::refuse_new(&mut *self.nft, &addresses)?;
        send(&mut *self.kernel, &diff.removals, &BTreeMap::new())?;
        send(&mut *self.kernel, &diff.drained, &BTreeMap::new())?;
        let changes = RouteDiff::of(&routes, &needed);
        send_routes(&mut *self.kernel, &changes.replaced)?;
        send_routes(&mut *self.kernel, &changes.deleted)?;
        interface::delete_ours(&mut *self.kernel, false)?;
        self.terminating.remember(&diff, now, |_| true);
        if !diff.lingering.is_empty() {
            return Ok(None);
        }
        let removed = |kind, name| CleanupItem { kind, name, error: None };
        let servers = held.keys().map(|key| removed("virtual server", key.to_string()));
        let routes = routes.iter().map(|route| removed("local route", route.range.to_string()));
        Ok(Some(servers.chain(routes).collect()))
    }
}
