//! Session affinity (ClientIP): the rules that store and look up a client's endpoint, and the elements of a Service port
//! with affinity.
//!
//! The `affinity` map stores an endpoint by a number, so the way from slot to endpoint has two lookups:
//! `sticky-slots` (slot -> number) and `sticky-endpoints` (number -> endpoint).
//!
//! Clients are stored by [`CLIENT_BITS`] bits of their address, so a Service port has at most that many entries: packets
//! with forged sources to one Service cannot take the room of others, and those of the attacked one still have affinity.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use model::forward::{ForwardedPort, Frontend};
use model::hash::{BASIS_32, fnv1a_32};
use model::plant::{PlantedBug, is_planted};
use model::{Family, TrafficPolicy};

use super::chain_class::ChainClass;
use super::elements::{ElementSink, endpoint_data, frontend_key};
use super::rules::Rules;
use super::sets::{ClientScope, FrontendLookup, SetName};
use super::weighted_slots::slots;
use crate::nftables::ir::{BitwiseOp, Bytes, Data, DynsetOp, Element, Expr, KeyBuilder, NftRule, Reg};

/// The bits of a client's address that its entry is stored under: a Service port has at most 2^12 entries. Clients that
/// agree in them share an entry, and so an endpoint.
pub(super) const CLIENT_BITS: u32 = 12;

/// Of IPv4 the last bits, which differ most between clients; of IPv6 those of the interface and of the subnet.
fn client_mask(family: Family) -> Bytes {
    match family {
        Family::V4 => Bytes::from([0, 0, 0x0f, 0xff]),
        Family::V6 => Bytes::from([0, 0, 0, 0, 0, 0, 0, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0xff]),
    }
}

impl Rules<'_> {
    /// Loads the part of the client's address that its entry is stored under.
    fn load_client_bits(&self, client: Reg) -> [Expr; 2] {
        let mask = client_mask(self.family);
        let xor = Bytes::from(vec![0; mask.len()]);
        let op = BitwiseOp::MaskXor { mask, xor };
        let len = self.address_len() as u32;
        [self.load_source(client), Expr::Bitwise { sreg: client, dreg: client, len, op }]
    }

    /// Semantics D5: if the stored endpoint no longer exists, another one is chosen and stored instead.
    pub(super) fn affinity(&self, class: &ChainClass, slots: u32, seconds: u32) -> Vec<NftRule> {
        let (lookup, scope) = (class.lookup, class.scope());
        let endpoints = SetName::StickyEndpoints(lookup, scope);
        let millis = if is_planted(PlantedBug::WrongAffinityTimeout) { 1024 } else { 1000 };
        let timeout = Some(u64::from(seconds) * millis);
        let load_client = |exprs: &mut Vec<Expr>| {
            exprs.push(Self::save_mark());
            let number = self.load_frontend(lookup, exprs);
            let client = number.after(4);
            self.look_up_through_mark(
                SetName::StickyIds(lookup),
                Reg(0),
                exprs,
                client.after(self.address_len()),
            );
            exprs.extend(self.load_client_bits(client));
            (number, client)
        };
        let update = |op, client, number, timeout| Expr::Dynset {
            op,
            set: self.set(SetName::Affinity),
            key: client,
            data: Some(number),
            timeout,
            counts: false,
        };

        let mut known = Vec::new();
        let (number, client) = load_client(&mut known);
        self.look_up_through_mark(SetName::Affinity, client, &mut known, number);
        known.push(self.look_up_endpoint(endpoints));
        known.push(update(DynsetOp::Update, client, number, timeout));
        known.push(self.dnat());

        // An update keeps the data of an existing element, so it has to be deleted first.
        let mut forget = Vec::new();
        let (_, client) = load_client(&mut forget);
        forget.push(update(DynsetOp::Delete, client, client.after(self.address_len()), None));

        let mut choose = Vec::new();
        let (number, client) = load_client(&mut choose);
        choose.push(Self::random(slots, number));
        self.look_up_through_mark(SetName::StickySlots(lookup, scope), Reg(0), &mut choose, number);
        choose.push(update(DynsetOp::Add, client, number, timeout));
        choose.extend([self.look_up_endpoint(endpoints), self.dnat()]);

        // If the affinity map is full, the rule before ends at its update.
        let mut unstored = vec![Self::save_mark()];
        let number = self.load_frontend(lookup, &mut unstored);
        unstored.push(Self::random(slots, number));
        self.look_up_through_mark(SetName::StickySlots(lookup, scope), Reg(0), &mut unstored, number);
        unstored.extend([self.look_up_endpoint(endpoints), self.dnat()]);
        vec![
            NftRule::new(known, "session affinity: known client, DNAT to its endpoint"),
            NftRule::new(forget, "session affinity: delete stale entry"),
            NftRule::new(choose, "session affinity: pick an endpoint and store it"),
            NftRule::new(unstored, "session affinity: map full, pick without storing"),
        ]
    }
}

/// The elements of a frontend with session affinity.
pub(super) fn add_affinity_elements(
    to: &mut impl ElementSink,
    frontend: &Frontend,
    scope: ClientScope,
    policy: TrafficPolicy,
    numbers: &[(SocketAddr, u32)],
) {
    let (place, port) = (&frontend.address, &frontend.port);
    let (lookup, family, set) = (FrontendLookup::of(place), place.family(), port.endpoints(policy));
    let id = Data::Value(Bytes::from(port_number(port).to_ne_bytes()));
    to.shared((family, SetName::StickyIds(lookup)), Element::entry(frontend_key(place).bytes(), id));
    let number_of = |index: usize| {
        let address = set.endpoints[index].address();
        numbers.binary_search_by_key(&address, |(a, _)| *a).map_or(0, |at| numbers[at].1)
    };
    for (slot, index) in slots(set).enumerate() {
        let key = frontend_key(place).mark(slot as u32);
        let number = KeyBuilder::new().mark(number_of(index));
        to.exclusive((family, SetName::StickySlots(lookup, scope)), &key, &number, &[]);
    }
    // Numbers are unique among the endpoints of a port.
    for (index, endpoint) in set.endpoints.iter().enumerate() {
        let key = frontend_key(place).mark(number_of(index));
        let data = endpoint_data(endpoint.address());
        to.exclusive((family, SetName::StickyEndpoints(lookup, scope)), &key, &data, &[]);
    }
}

/// The number of each endpoint of a port, by address: its hash, or the next free number. It does not depend on other
/// endpoints, so that clients keep theirs when others change.
pub(super) fn endpoint_numbers(port: &ForwardedPort) -> Vec<(SocketAddr, u32)> {
    if port.affinity_seconds.is_none() {
        return Vec::new();
    }
    let all = port.cluster.endpoints.iter().chain(&port.local.endpoints);
    let addresses: BTreeSet<SocketAddr> = all.map(|e| e.address()).collect();
    let mut taken = BTreeSet::new();
    let mut numbers = Vec::with_capacity(addresses.len());
    for address in addresses {
        let mut number = fnv1a_32(BASIS_32, endpoint_data(address).as_slice());
        while !taken.insert(number) {
            number = number.wrapping_add(1);
        }
        numbers.push((address, number));
    }
    numbers
}

/// The number under which clients of a port are stored. If two ports collide, a client of both may lose its affinity:
/// the endpoint number of one port means nothing to the other.
fn port_number(port: &ForwardedPort) -> u32 {
    fnv1a_32(BASIS_32, frontend_key(&port.cluster_address()).as_slice())
}
