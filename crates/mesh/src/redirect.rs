//! Redirection of connections to Services to a sidecar's port, while the sidecar runs.
//!
//! Exactly the addresses of the route table are redirected. An address leaves the kernel's set before it leaves the
//! table, and enters it after, so that the proxy knows every destination that it gets.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::Kernel;
use dataplane::nftables::apply::{apply, apply_diff, read};
use dataplane::nftables::ir::{NftChange, Ruleset};
use dataplane::nftables::sidecar_redirect::{SidecarRedirect, render, table_id};
use model::{Family, RouteTable};

/// The redirect tables in the kernel.
pub struct KernelRedirect {
    kernel: Box<dyn Kernel + Send>,
    port: u16,
    uid: Option<u32>,
    /// The kernel's current state; `None` if unknown.
    programmed: Option<(BTreeSet<SocketAddr>, Ruleset)>,
}

impl KernelRedirect {
    /// Opens nf_tables of this network namespace. Connections of `uid` are not redirected.
    pub fn open(port: u16, uid: Option<u32>) -> Result<Self> {
        let kernel = NetlinkSocket::open().context("opening nf_tables for --redirect")?;
        Ok(Self::with(Box::new(kernel), port, uid))
    }

    fn with(kernel: Box<dyn Kernel + Send>, port: u16, uid: Option<u32>) -> Self {
        Self { kernel, port, uid, programmed: None }
    }

    /// Removes addresses that the new table does not have. Call it before the proxy gets the table.
    pub fn narrow(&mut self, to: &RouteTable) -> Result<()> {
        let Some((held, _)) = &self.programmed else { return Ok(()) };
        let wanted = destinations(to);
        if held.is_subset(&wanted) {
            return Ok(());
        }
        let both = held.intersection(&wanted).copied().collect();
        self.program(both)
    }

    /// Redirects all addresses of the table. Call it after the proxy got the table.
    pub fn widen(&mut self, to: &RouteTable) -> Result<()> {
        let wanted = destinations(to);
        if self.programmed.as_ref().is_some_and(|(held, _)| *held == wanted) {
            return Ok(());
        }
        self.program(wanted)
    }

    fn program(&mut self, services: BTreeSet<SocketAddr>) -> Result<()> {
        let old = match self.programmed.take() {
            Some((_, program)) => program,
            None => self.read()?,
        };
        let list: Vec<SocketAddr> = services.iter().copied().collect();
        let new = render(&SidecarRedirect { services: &list, port: self.port, uid: self.uid });
        let advice =
            "redirecting connections to Services; --redirect needs NET_ADMIN in this network namespace";
        apply_diff(&mut *self.kernel, &old, &new).context(advice)?;
        self.programmed = Some((services, new));
        Ok(())
    }

    fn read(&mut self) -> Result<Ruleset> {
        let ours = [Family::V4, Family::V6].map(table_id);
        let (program, _) = read(&mut *self.kernel, &ours).context("reading the tables for --redirect")?;
        Ok(program)
    }

    pub fn remove(&mut self) -> Result<()> {
        let held = self.read()?;
        self.programmed = None;
        let gone: Vec<NftChange> =
            held.tables.into_keys().map(|table| NftChange::DeleteTable { table }).collect();
        apply(&mut *self.kernel, &gone).context("removing the redirect; run zoneward cleanup to remove it")
    }
}

fn destinations(routes: &RouteTable) -> BTreeSet<SocketAddr> {
    let ports = routes.outbounds().flat_map(|outbound| {
        outbound.addresses.iter().map(|address| SocketAddr::new(*address, outbound.port))
    });
    ports.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dataplane::nftables::fake::FakeKernel;
    use model::ServiceKey;
    use model::route::{AppProtocol, Outbound, Routing};

    use super::*;

    fn table(addresses: &[&str]) -> RouteTable {
        let mut table = RouteTable::default();
        for (i, address) in addresses.iter().enumerate() {
            table.put_outbound(Arc::new(Outbound {
                service: ServiceKey::new(&"shop".into(), &format!("s{i}").as_str().into()),
                port: 80,
                protocol: AppProtocol::Tcp,
                addresses: [address.parse().unwrap()].into(),
                routing: Routing::Tcp(Arc::default()),
            }));
        }
        table
    }

    fn held(redirect: &mut KernelRedirect) -> usize {
        let program = redirect.read().unwrap();
        program.tables.values().flat_map(|table| table.sets.values()).map(|set| set.elements.len()).sum()
    }

    #[test]
    fn addresses_go_before_the_table_changes_and_come_after_it() {
        let mut redirect = KernelRedirect::with(Box::new(FakeKernel::default()), 15_001, None);
        redirect.narrow(&table(&["10.96.0.1"])).unwrap();
        assert_eq!(held(&mut redirect), 0, "nothing before the proxy has a table");
        redirect.widen(&table(&["10.96.0.1", "fd00::1"])).unwrap();
        assert_eq!(held(&mut redirect), 2);
        let next = table(&["10.96.0.1", "10.96.0.2"]);
        redirect.narrow(&next).unwrap();
        assert_eq!(held(&mut redirect), 1);
        redirect.widen(&next).unwrap();
        assert_eq!(held(&mut redirect), 2);
        redirect.remove().unwrap();
        assert!(redirect.read().unwrap().tables.is_empty());
        redirect.widen(&next).unwrap();
        assert_eq!(held(&mut redirect), 2, "what was taken away is made again");
    }
}
