//! The numbers of the kernel's netlink interface to nf_tables (uapi/linux/netfilter/nf_tables.h), and of nft's
//! user data. They never change; they are here because no crate in use has them all.

pub use crate::nfnetlink::abi::*;

/// Messages of nf_tables, without the subsystem.
pub mod msg {
    pub const NEWTABLE: u16 = 0;
    pub const GETTABLE: u16 = 1;
    pub const DELTABLE: u16 = 2;
    pub const NEWCHAIN: u16 = 3;
    pub const GETCHAIN: u16 = 4;
    pub const DELCHAIN: u16 = 5;
    pub const NEWRULE: u16 = 6;
    pub const GETRULE: u16 = 7;
    pub const DELRULE: u16 = 8;
    pub const NEWSET: u16 = 9;
    pub const GETSET: u16 = 10;
    pub const DELSET: u16 = 11;
    pub const NEWSETELEM: u16 = 12;
    pub const GETSETELEM: u16 = 13;
    pub const DELSETELEM: u16 = 14;
    pub const NEWGEN: u16 = 15;
    pub const GETGEN: u16 = 16;
}

pub const GEN_ID: u16 = 1;
pub const LIST_ELEM: u16 = 1;

pub mod table {
    pub const NAME: u16 = 1;
    pub const FLAGS: u16 = 2;
    pub const USERDATA: u16 = 6;
}

pub mod chain {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 3;
    pub const HOOK: u16 = 4;
    pub const POLICY: u16 = 5;
    pub const TYPE: u16 = 7;
    pub const USERDATA: u16 = 12;
    pub const HOOK_NUM: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
}

pub mod rule {
    pub const TABLE: u16 = 1;
    pub const CHAIN: u16 = 2;
    pub const HANDLE: u16 = 3;
    pub const EXPRESSIONS: u16 = 4;
    pub const USERDATA: u16 = 7;
    pub const EXPR_NAME: u16 = 1;
    pub const EXPR_DATA: u16 = 2;
}

pub mod set {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const KEY_TYPE: u16 = 4;
    pub const KEY_LEN: u16 = 5;
    pub const DATA_TYPE: u16 = 6;
    pub const DATA_LEN: u16 = 7;
    pub const DESC: u16 = 9;
    pub const ID: u16 = 10;
    pub const TIMEOUT: u16 = 11;
    pub const USERDATA: u16 = 13;
    pub const DESC_SIZE: u16 = 1;
    pub const DESC_CONCAT: u16 = 2;
    pub const FIELD_LEN: u16 = 1;

    pub const F_ANONYMOUS: u32 = 0x1;
    pub const F_INTERVAL: u32 = 0x4;
    pub const F_MAP: u32 = 0x8;
    pub const F_TIMEOUT: u32 = 0x10;
    pub const F_EVAL: u32 = 0x20;
    pub const F_CONCAT: u32 = 0x80;
    pub const DATA_VERDICT: u32 = 0xffff_ff00;
}

pub mod elem {
    pub const LIST_TABLE: u16 = 1;
    pub const LIST_SET: u16 = 2;
    pub const LIST_ELEMENTS: u16 = 3;
    pub const KEY: u16 = 1;
    pub const DATA: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const TIMEOUT: u16 = 4;
    pub const USERDATA: u16 = 6;
    pub const EXPR: u16 = 7;
    pub const PAD: u16 = 8;
    pub const KEY_END: u16 = 10;
    pub const F_INTERVAL_END: u32 = 1;
}

pub mod data {
    pub const VALUE: u16 = 1;
    pub const VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const VERDICT_CHAIN: u16 = 2;
}

pub mod verdict {
    pub const DROP: i32 = 0;
    pub const ACCEPT: i32 = 1;
    pub const CONTINUE: i32 = -1;
    pub const BREAK: i32 = -2;
    pub const JUMP: i32 = -3;
    pub const GOTO: i32 = -4;
    pub const RETURN: i32 = -5;
}

/// Registers: 0 is the verdict, 1 to 4 are sixteen bytes each, from 8 on four bytes each of the same memory.
pub mod reg {
    pub const VERDICT: u32 = 0;
    pub const WIDE_FIRST: u32 = 1;
    pub const WIDE_LAST: u32 = 4;
    pub const NARROW_FIRST: u32 = 8;
    pub const NARROW_LAST: u32 = 23;
}

pub mod meta {
    pub const DREG: u16 = 1;
    pub const KEY: u16 = 2;
    pub const SREG: u16 = 3;
}

pub mod payload {
    pub const DREG: u16 = 1;
    pub const BASE: u16 = 2;
    pub const OFFSET: u16 = 3;
    pub const LEN: u16 = 4;
}

pub mod ct {
    pub const DREG: u16 = 1;
    pub const KEY: u16 = 2;
    pub const DIRECTION: u16 = 3;
    pub const SREG: u16 = 4;
}

pub mod fib {
    pub const DREG: u16 = 1;
    pub const RESULT: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const RESULT_ADDRTYPE: u32 = 3;
}

pub mod cmp {
    pub const SREG: u16 = 1;
    pub const OP: u16 = 2;
    pub const DATA: u16 = 3;
}

pub mod range {
    pub const SREG: u16 = 1;
    pub const OP: u16 = 2;
    pub const FROM: u16 = 3;
    pub const TO: u16 = 4;
}

pub mod bitwise {
    pub const SREG: u16 = 1;
    pub const DREG: u16 = 2;
    pub const LEN: u16 = 3;
    pub const MASK: u16 = 4;
    pub const XOR: u16 = 5;
    pub const OP: u16 = 6;
    pub const DATA: u16 = 7;
}

pub mod immediate {
    pub const DREG: u16 = 1;
    pub const DATA: u16 = 2;
}

pub mod lookup {
    pub const SET: u16 = 1;
    pub const SREG: u16 = 2;
    pub const DREG: u16 = 3;
    pub const FLAGS: u16 = 5;
    pub const F_INV: u32 = 1;
}

pub mod nat {
    pub const TYPE: u16 = 1;
    pub const FAMILY: u16 = 2;
    pub const ADDR_MIN: u16 = 3;
    pub const ADDR_MAX: u16 = 4;
    pub const PROTO_MIN: u16 = 5;
    pub const PROTO_MAX: u16 = 6;
    pub const FLAGS: u16 = 7;
    pub const F_RANDOM: u32 = 4;
    pub const F_PERSISTENT: u32 = 8;
    pub const F_FULLY_RANDOM: u32 = 16;
    pub const MASQ_FLAGS: u16 = 1;
}

pub mod numgen {
    pub const DREG: u16 = 1;
    pub const MODULUS: u16 = 2;
    pub const TYPE: u16 = 3;
    pub const OFFSET: u16 = 4;
}

pub mod dynset {
    pub const SET: u16 = 1;
    pub const OP: u16 = 3;
    pub const SREG_KEY: u16 = 4;
    pub const SREG_DATA: u16 = 5;
    pub const TIMEOUT: u16 = 6;
    pub const EXPR: u16 = 7;
    pub const EXPRESSIONS: u16 = 10;
}

pub mod counter {
    pub const PACKETS: u16 = 2;
}

pub mod reject {
    pub const TYPE: u16 = 1;
    pub const CODE: u16 = 2;
}

/// User data as nft writes it: type, length, value. The kernel only keeps it.
pub mod udata {
    pub const TABLE_COMMENT: u8 = 0;
    pub const CHAIN_COMMENT: u8 = 0;
    pub const RULE_COMMENT: u8 = 0;
    pub const ELEM_COMMENT: u8 = 0;
    pub const SET_KEY_BYTEORDER: u8 = 0;
    pub const SET_DATA_BYTEORDER: u8 = 1;
    pub const SET_KEY_TYPEOF: u8 = 3;
    pub const SET_DATA_TYPEOF: u8 = 4;
    pub const SET_COMMENT: u8 = 7;
    pub const TYPEOF_EXPR: u8 = 0;
    pub const TYPEOF_DATA: u8 = 1;
    pub const BYTEORDER_HOST: u32 = 1;
    pub const BYTEORDER_BIG: u32 = 2;
}
