//! Numbers of generic netlink, IPVS and routes (uapi/linux/genetlink.h, ip_vs.h, rtnetlink.h).

/// The family that maps names of families to numbers.
pub const GENL_ID_CTRL: u16 = 0x10;
pub const CTRL_CMD_GETFAMILY: u8 = 3;
pub const CTRL_ATTR_FAMILY_ID: u16 = 1;
pub const CTRL_ATTR_FAMILY_NAME: u16 = 2;

pub const FAMILY_NAME: &str = "IPVS";
pub const VERSION: u8 = 1;

/// Commands.
pub mod cmd {
    pub const NEW_SERVICE: u8 = 1;
    pub const SET_SERVICE: u8 = 2;
    pub const DEL_SERVICE: u8 = 3;
    pub const GET_SERVICE: u8 = 4;
    pub const NEW_DEST: u8 = 5;
    pub const SET_DEST: u8 = 6;
    pub const DEL_DEST: u8 = 7;
    pub const GET_DEST: u8 = 8;
    pub const SET_CONFIG: u8 = 12;
}

/// Attributes of a command.
pub const ATTR_SERVICE: u16 = 1;
pub const ATTR_DEST: u16 = 2;
pub const ATTR_TIMEOUT_TCP: u16 = 4;
pub const ATTR_TIMEOUT_TCP_FIN: u16 = 5;
pub const ATTR_TIMEOUT_UDP: u16 = 6;

/// Attributes of a virtual server.
pub mod service {
    pub const AF: u16 = 1;
    pub const PROTOCOL: u16 = 2;
    pub const ADDR: u16 = 3;
    pub const PORT: u16 = 4;
    pub const FWMARK: u16 = 5;
    pub const SCHED_NAME: u16 = 6;
    pub const FLAGS: u16 = 7;
    pub const TIMEOUT: u16 = 8;
    pub const NETMASK: u16 = 9;
    pub const STATS64: u16 = 12;
}

/// Attributes of a real server.
pub mod dest {
    pub const ADDR: u16 = 1;
    pub const PORT: u16 = 2;
    pub const FWD_METHOD: u16 = 3;
    pub const WEIGHT: u16 = 4;
    pub const U_THRESH: u16 = 5;
    pub const L_THRESH: u16 = 6;
    pub const ACTIVE_CONNS: u16 = 7;
    pub const INACT_CONNS: u16 = 8;
    pub const ADDR_FAMILY: u16 = 11;
    pub const STATS64: u16 = 12;
}

/// In STATS64.
pub const STATS_CONNS: u16 = 1;

/// Flags of a virtual server.
pub const PERSISTENT: u32 = 1;
/// Set by the kernel.
pub const HASHED: u32 = 2;
/// Of `sh` and `mh`: the client's port counts.
pub const SCHED_PORT: u32 = 0x10;
/// No scheduler reads it (`ipvsadm` shows it as `flag-3`): by it our virtual servers are found again, since IPVS has no
/// field for an owner.
pub const OWNER: u32 = 0x20;

/// The packet is rewritten (NAT).
pub const MASQUERADE: u32 = 0;

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;

pub const RTM_NEWLINK: u16 = 16;
pub const RTM_DELLINK: u16 = 17;
pub const RTM_GETLINK: u16 = 18;
pub const IFLA_IFNAME: u16 = 3;
pub const IFLA_LINKINFO: u16 = 18;
pub const IFLA_IFALIAS: u16 = 20;
/// In LINKINFO.
pub const IFLA_INFO_KIND: u16 = 1;
pub const RTM_NEWADDR: u16 = 20;
pub const RTM_DELADDR: u16 = 21;
pub const RTM_GETADDR: u16 = 22;
pub const IFA_ADDRESS: u16 = 1;
pub const IFA_LOCAL: u16 = 2;
/// The kernel does not ask whether another machine has the address.
pub const IFA_F_NODAD: u8 = 2;
pub const RTM_NEWROUTE: u16 = 24;
pub const RTM_DELROUTE: u16 = 25;
pub const RTM_GETROUTE: u16 = 26;
pub const RTA_DST: u16 = 1;
pub const RTA_OIF: u16 = 4;
pub const RTA_PREFSRC: u16 = 7;
pub const RT_TABLE_LOCAL: u8 = 255;
pub const RT_SCOPE_UNIVERSE: u8 = 0;
pub const RT_SCOPE_HOST: u8 = 254;
pub const RTN_LOCAL: u8 = 2;
/// The originator of our routes (`ip route` shows it as `proto 90`), by which they are found again.
pub const RTPROT_ZONEWARD: u8 = 90;
/// The loopback interface of every network namespace.
pub const LOOPBACK_INDEX: u32 = 1;
