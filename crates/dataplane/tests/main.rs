//! The tests of crate `dataplane`, as one program: one link instead of 15.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

mod conntrack;
mod fake_kernel;
mod flows;
mod iptables_kernel;
mod ipvs;
mod ipvs_kernel;
mod kernel;
mod kernelspace;
mod kube_proxy_back;
mod kube_proxy_rules;
mod namespace;
mod packetflow;
mod packetflow_incremental;
mod packetflow_iptables;
mod packetflow_kernel;
mod refusals;
mod roundtrip;
mod sample;
mod staged_diff;
