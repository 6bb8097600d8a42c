//! A node that reports far more connections than the others of its zone.

/// The node of a zone with the most connections to a Service, beside the other nodes. Proxies do not count: traffic that
/// is concentrated is what they are for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BusiestNode {
    pub name: String,
    /// Its connections per second, and those of the node with the next most.
    pub rate: f64,
    pub next_rate: f64,
    /// Other nodes of the zone with connections to the Service.
    pub others: usize,
}

impl BusiestNode {
    /// Counts one more node.
    pub fn add(&mut self, name: &str, rate: f64) {
        if rate <= 0.0 {
            return;
        }
        if self.rate > 0.0 {
            self.others += 1;
        }
        if rate <= self.rate {
            self.next_rate = self.next_rate.max(rate);
            return;
        }
        (self.next_rate, self.rate) = (self.rate, rate);
        self.name.clear();
        self.name.push_str(name);
    }
}
