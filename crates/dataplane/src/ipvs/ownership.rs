//! Which virtual servers are ours. IPVS has no field for an owner; a flag that no scheduler reads says it, and lives as long
//! as the virtual server.

use super::abi;
use super::message::VirtualServer;

impl VirtualServer {
    /// Whether Zoneward made it.
    pub fn is_ours(&self) -> bool {
        self.flags & abi::OWNER != 0
    }
}
