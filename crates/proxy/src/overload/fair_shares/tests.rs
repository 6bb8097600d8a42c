//! Examples, and the two properties: nothing is evicted while there is room, and no client below its share gives way.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Shares = FairShares<u8, ()>;

fn claim(client: u8, connection: u64) -> Claim<u8> {
    Claim { client, connection, amount: 1, old: None }
}

fn hold(shares: &mut Shares, client: u8, connection: u64, count: usize) {
    for _ in 0..count {
        shares.insert(client, connection, 1, 1, ());
    }
}

/// Client and connection that give way.
fn victim(shares: &Shares, claim: Claim<u8>) -> Option<(u8, u64)> {
    shares.victim(&claim).map(|id| (id.client, id.connection))
}

#[test]
fn the_client_that_holds_most_gives_way() {
    let mut shares = Shares::default();
    hold(&mut shares, 1, 10, 6);
    hold(&mut shares, 2, 20, 3);
    assert_eq!(victim(&shares, claim(3, 30)), Some((1, 10)));
    assert_eq!(victim(&shares, claim(2, 20)), Some((1, 10)));
    assert_eq!(victim(&shares, claim(1, 10)), None);
}

#[test]
fn the_oldest_holder_of_the_largest_connection_goes_first() {
    let mut shares = FairShares::default();
    let first = shares.insert(1, 10, 1, 1, "first");
    shares.insert(1, 11, 1, 1, "other connection");
    let second = shares.insert(1, 10, 1, 1, "second");
    assert_eq!(shares.victim(&claim(2, 20)), Some(first));
    assert_eq!(shares.remove(first), Some("first"));
    assert_eq!(shares.remove(first), None);
    shares.insert(1, 10, 1, 1, "third");
    assert_eq!(shares.victim(&claim(2, 20)), Some(second));
}

#[test]
fn behind_one_address_connections_share() {
    let mut shares = Shares::default();
    hold(&mut shares, 1, 10, 6);
    hold(&mut shares, 1, 11, 2);
    assert_eq!(victim(&shares, claim(1, 12)), Some((1, 10)));
    assert_eq!(victim(&shares, claim(1, 11)), Some((1, 10)));
    assert_eq!(victim(&shares, claim(1, 10)), None);
}

#[test]
fn equals_give_way_only_when_they_are_old() {
    let mut shares = Shares::default();
    hold(&mut shares, 1, 10, 1);
    hold(&mut shares, 2, 20, 1);
    assert_eq!(victim(&shares, claim(3, 30)), None);
    assert_eq!(victim(&shares, Claim { old: Some(1), ..claim(3, 30) }), Some((1, 10)));
    assert_eq!(victim(&shares, Claim { old: Some(1), ..claim(1, 10) }), None);
    // Behind one address, too.
    assert_eq!(victim(&shares, claim(1, 11)), None);
    assert_eq!(victim(&shares, Claim { old: Some(1), ..claim(1, 11) }), Some((1, 10)));
}

/// A bounded resource over the ledger, as `request_slots` has it.
struct Bounded {
    limit: usize,
    shares: Shares,
    held: Vec<HolderId<u8>>,
}

impl Bounded {
    fn used_by(&self, client: u8) -> usize {
        self.held.iter().filter(|id| id.client == client).count()
    }

    fn used_by_connection(&self, client: u8, connection: u64) -> usize {
        self.held.iter().filter(|id| (id.client, id.connection) == (client, connection)).count()
    }

    /// Clients that hold something or want to.
    fn clients(&self, claimant: u8) -> BTreeMap<u8, usize> {
        let mut clients: BTreeMap<u8, usize> = [(claimant, 0)].into();
        self.held.iter().for_each(|id| *clients.entry(id.client).or_default() += 1);
        clients
    }
}

proptest! {
    #[test]
    fn shares_are_work_conserving_and_no_client_below_its_share_gives_way(
        limit in 1usize..24,
        steps in prop::collection::vec((0u8..5, 0u64..4, 0u64..3, 0usize..64), 1..300),
    ) {
        let mut bounded = Bounded { limit, shares: Shares::default(), held: Vec::new() };
        for (at, (client, connection, action, pick)) in steps.into_iter().enumerate() {
            let at = at as u64;
            if action == 0 && !bounded.held.is_empty() {
                let id = bounded.held.swap_remove(pick % bounded.held.len());
                prop_assert!(bounded.shares.remove(id).is_some());
                continue;
            }
            // Work-conserving: with room, nothing is asked for a victim.
            if bounded.shares.used() >= bounded.limit {
                let claim = Claim { client, connection, amount: 1, old: at.checked_sub(pick as u64) };
                let clients = bounded.clients(client);
                let most = clients.values().max().copied().unwrap_or_default();
                let own = bounded.used_by(client);
                match bounded.shares.victim(&claim) {
                    Some(id) => {
                        let used = bounded.used_by(id.client);
                        // The share of each of n is limit / n, and the largest is never below the mean.
                        prop_assert_eq!(used, most, "another client holds more");
                        prop_assert!(used * clients.len() >= bounded.limit, "a client below its share");
                        let connection_use = bounded.used_by_connection(id.client, id.connection);
                        let same = bounded.held.iter().filter(|held| held.client == id.client);
                        let largest = same.map(|held| bounded.used_by_connection(held.client, held.connection));
                        prop_assert_eq!(Some(connection_use), largest.max(), "another connection holds more");
                        if id.client == client {
                            prop_assert!(bounded.used_by_connection(client, connection) < connection_use);
                        } else {
                            prop_assert!(own < used);
                        }
                        prop_assert!(bounded.shares.remove(id).is_some());
                        bounded.held.retain(|held| *held != id);
                    }
                    None => {
                        // Refused: the claimant would hold as much as the largest.
                        prop_assert!(own + 1 >= most, "refused below the share: {} of {}", own, most);
                        continue;
                    }
                }
            }
            bounded.held.push(bounded.shares.insert(client, connection, 1, at, ()));
            prop_assert!(bounded.shares.used() <= bounded.limit);
            prop_assert_eq!(bounded.shares.used(), bounded.held.len());
        }
    }

    #[test]
    fn a_newcomer_gets_its_share_whatever_others_hold(
        limit in 4usize..64,
        others in prop::collection::vec((0u8..6, 0u64..4), 64),
    ) {
        let mut shares = Shares::default();
        others.into_iter().take(limit).for_each(|(client, connection)| {
            shares.insert(client, connection, 1, 1, ());
        });
        let mut got = 0;
        for _ in 0..limit {
            let Some(id) = shares.victim(&claim(99, 1)) else { break };
            prop_assert!(id.client != 99);
            shares.remove(id);
            shares.insert(99, 1, 1, 2, ());
            got += 1;
        }
        // Seven clients at most.
        prop_assert!(got >= limit / 7, "{} of {}", got, limit);
    }
}
