//! Numbers of netlink and of its netfilter subsystem (uapi/linux/netlink.h, uapi/linux/netfilter/nfnetlink.h).

pub const NLMSG_ERROR: u16 = 2;
pub const NLMSG_DONE: u16 = 3;
pub const NLM_F_REQUEST: u16 = 0x1;
pub const NLM_F_MULTI: u16 = 0x2;
pub const NLM_F_ACK: u16 = 0x4;
pub const NLM_F_DUMP_INTR: u16 = 0x10;
pub const NLM_F_REPLACE: u16 = 0x100;
pub const NLM_F_EXCL: u16 = 0x200;
pub const NLM_F_DUMP: u16 = 0x300;
pub const NLM_F_CREATE: u16 = 0x400;
pub const NLM_F_APPEND: u16 = 0x800;
/// In an error: the request is not quoted, and attributes follow.
pub const NLM_F_CAPPED: u16 = 0x100;
pub const NLM_F_ACK_TLVS: u16 = 0x200;
pub const NLMSGERR_ATTR_MSG: u16 = 1;

pub const SUBSYS_CTNETLINK: u16 = 1;
pub const SUBSYS_NFTABLES: u16 = 10;
pub const BATCH_BEGIN: u16 = 0x10;
pub const BATCH_END: u16 = 0x11;
pub const BATCH_GENID: u16 = 1;
