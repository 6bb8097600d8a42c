//! A kernel that behaves: it takes the bytes of transactions, keeps tables by the kernel's own rules, and says what would
//! become of a packet.

mod packet;

pub use packet::{Evaluation, Fate, Learned, Node, Packet, Path, Step};
