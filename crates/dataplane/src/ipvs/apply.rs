//! Sends changes of virtual servers and routes, and explains what the kernel refuses.

use std::collections::{BTreeMap, BTreeSet};

use model::ServiceKey;
use nix::errno::Errno;

use super::kernel::{IpvsKernel, RefusedChange, send_changes, send_route_changes};
use super::message::{IpvsChange, VirtualServerKey};
use super::route::{LocalRoute, RouteChange};
use crate::backend::BackendError;
use crate::nfnetlink::NetlinkError;

/// Returns 1 if there was something to send.
pub(super) fn send(
    kernel: &mut dyn IpvsKernel,
    changes: &[IpvsChange],
    services: &BTreeMap<VirtualServerKey, ServiceKey>,
) -> Result<usize, BackendError> {
    if changes.is_empty() {
        return Ok(0);
    }
    let refused = send_changes(kernel, changes)
        .map_err(|error| BackendError::failed(format!("cannot change IPVS: {error}")))?;
    // What is gone already need not be deleted.
    let is_gone = |refused: &RefusedChange<IpvsChange>| {
        let deletes = matches!(refused.change, IpvsChange::DeleteServer(_) | IpvsChange::DeleteReal(..));
        deletes && matches!(refused.errno, Errno::ESRCH | Errno::ENOENT)
    };
    let refused: Vec<_> = refused.into_iter().filter(|refused| !is_gone(refused)).collect();
    let Some(first) = refused.first() else { return Ok(1) };
    let message = format!("cannot {}: {}{}", first.change, first.errno, advice(&first.change, first.errno));
    let keys = refused.iter().filter_map(|refused| refused.change.key());
    let named: BTreeSet<ServiceKey> = keys.filter_map(|key| services.get(key)).cloned().collect();
    // Another program changed the same virtual server: a comparison repairs it.
    let is_stale = matches!(first.errno, Errno::EEXIST | Errno::ESRCH)
        || (first.errno == Errno::ENOENT && matches!(first.change, IpvsChange::SetReal(..)));
    Err(match is_stale {
        true => BackendError::failed(message),
        false => BackendError::refused_services(message, named),
    })
}

/// The same for routes.
pub(super) fn send_routes(
    kernel: &mut dyn IpvsKernel,
    changes: &[RouteChange],
) -> Result<usize, BackendError> {
    if changes.is_empty() {
        return Ok(0);
    }
    let failed = |error: NetlinkError| BackendError::failed(format!("cannot change routes: {error}"));
    let refused = send_route_changes(kernel, changes).map_err(failed)?;
    let mut again = Vec::new();
    for RefusedChange { change, errno } in refused {
        match change {
            RouteChange::Delete(_) if errno == Errno::ESRCH => {}
            // The address of the node is not on an interface (yet).
            RouteChange::Replace(LocalRoute { range, source: Some(_) }) if errno == Errno::EINVAL => {
                again.push(RouteChange::Replace(LocalRoute { range, source: None }));
            }
            RouteChange::Replace(LocalRoute { range, .. })
            | RouteChange::Delete(LocalRoute { range, .. }) => {
                return Err(BackendError::failed(format!("cannot change the local route {range}: {errno}")));
            }
        }
    }
    send_routes(kernel, &again).map(|_| 1)
}

fn advice(change: &IpvsChange, errno: Errno) -> String {
    match (change, errno) {
        (IpvsChange::NewServer(_, server) | IpvsChange::SetServer(_, server), Errno::ENOENT) => {
            format!("; load the kernel module ip_vs_{}", server.scheduler)
        }
        (_, Errno::EPERM) => "; run as root or grant NET_ADMIN".to_owned(),
        _ => String::new(),
    }
}

pub(super) fn read_error(error: NetlinkError) -> BackendError {
    BackendError::failed(format!("cannot read virtual servers and routes from the kernel: {error}"))
}
