//! `cargo xtask test --extended --only ipvs`: the tests of mode ipvs in a virtual machine, since few kernels of developers'
//! machines have IPVS.

use toolbox::iptables;

use std::path::PathBuf;

use crate::Stop;
use crate::suite::{self, Spent};
use crate::vm::{self, Initramfs, failed, name_of, read, tools_bin};
use crate::{shell, tools};

/// Modules that the tests need, besides those of nftables.
const MODULES: [&str; 44] = [
    "dummy",
    "ip_vs",
    "ip_vs_rr",
    "ip_vs_wrr",
    "ip_vs_lc",
    "ip_vs_wlc",
    "ip_vs_lblc",
    "ip_vs_lblcr",
    "ip_vs_sh",
    "ip_vs_dh",
    "ip_vs_sed",
    "ip_vs_nq",
    "ip_vs_mh",
    "nft_compat",
    "ip_tables",
    "iptable_nat",
    "iptable_filter",
    "iptable_mangle",
    "ip6_tables",
    "ip6table_nat",
    "ip6table_filter",
    "ip6table_mangle",
    "xt_addrtype",
    "xt_bpf",
    "xt_comment",
    "xt_conntrack",
    "xt_mark",
    "xt_MASQUERADE",
    "xt_nat",
    "xt_nfacct",
    "xt_recent",
    "xt_statistic",
    "xt_tcpudp",
    "xt_ipvs",
    "xt_physdev",
    "xt_set",
    "ip_set",
    "ip_set_bitmap_port",
    "ip_set_hash_ip",
    "ip_set_hash_ipport",
    "ip_set_hash_ipportip",
    "ip_set_hash_ipportnet",
    "ipt_REJECT",
    "ip6t_REJECT",
];

/// Builds the test program, packs and boots it.
pub(crate) fn run() -> Result<Spent, Stop> {
    let mut programs = Vec::new();
    let build = suite::built(|| {
        programs = vm::build(&PACKAGES)?;
        Ok(())
    })?;
    let mut tests = 0;
    let run = suite::ran(|| {
        tests = boot(&programs)?;
        Ok(())
    })?;
    Ok(Spent { build: build.build, run: run.run, tests })
}

/// The packages that have tests of mode ipvs.
const PACKAGES: [&str; 2] = ["dataplane", "zoneward"];

/// Runs the tests in the machine; how many passed.
fn boot(programs: &[PathBuf]) -> Result<u64, Stop> {
    let folder = tools::unpacked();
    let (kernel, version) = vm::kernel(&folder)?;
    let mut image = Initramfs::default();
    let modules = vm::modules(&folder, &version, &[&vm::NFTABLES[..], &MODULES[..]].concat())?;
    for module in &modules {
        image.file(&format!("/modules/{}", name_of(module)), &read(module)?, 0o644);
    }
    image.file("/bin/busybox", &read(&folder.join("bin/busybox"))?, 0o755);
    for (package, program) in PACKAGES.iter().zip(programs) {
        image.program(&format!("/vm/debug/{package}"), program)?;
    }
    // Where cargo told the test that it is.
    let zoneward = suite::program_as_tested()?;
    image.program(&zoneward.display().to_string(), &zoneward)?;
    image.program("/vm/tools/bin/ip", &tools_bin("ip")?)?;
    image.file("/etc/protocols", b"tcp 6 TCP\nudp 17 UDP\nsctp 132 SCTP\n", 0o644);
    image.program("/vm/tools/bin/ipset", &tools_bin("ipset")?)?;
    add_iptables(&mut image)?;
    for file in ["config.yaml", "ipvs-ipset.save", "ipvs-iptables.save", "ipvs-ipvsadm.save", "objects.yaml"]
    {
        let file = shell::root().join("crates/zoneward/tests/migrate").join(file);
        image.file(&file.display().to_string(), &read(&file)?, 0o644);
    }
    let vectors = shell::root().join("crates/dataplane/../../vectors/packetflow-nftables.json");
    let place = shell::root().join("vectors/packetflow-nftables.json");
    image.file(&place.display().to_string(), &read(&vectors)?, 0o644);
    image.folder(&shell::root().join("crates/dataplane").display().to_string());
    // One after the other: they share the kernel's IPVS, which has no namespaces for all of it.
    let commands = "export XTABLES_LIBDIR=/vm/xtables RUST_TEST_THREADS=1; \
         /vm/debug/dataplane --nocapture ipvs_kernel:: && /vm/debug/zoneward --nocapture node_ipvs::";
    image.file("/init", vm::init(&modules, commands).as_bytes(), 0o755);
    let archive = shell::target_dir().join("ipvs-vm.cpio");
    std::fs::write(&archive, image.bytes()).map_err(|error| failed(&archive, &error))?;
    vm::boot(&kernel, &archive)
}

/// Both flavours for both families, with their extensions.
fn add_iptables(image: &mut Initramfs) -> Result<(), Stop> {
    for flavour in iptables::FLAVOURS {
        let place = format!("/vm/{}", iptables::multi_program(flavour));
        let program = tools_bin(&format!("iptables-{flavour}"))?;
        let libraries = image.program(&place, &program)?;
        for name in iptables::names(flavour) {
            image.link(&format!("/vm/tools/bin/{name}"), &place);
        }
        // They are beside its library; the environment of the init program says where they are then.
        let of_xtables = libraries.iter().find(|library| name_of(library).starts_with("libxtables."));
        let folder = of_xtables.and_then(|library| library.parent()).map(|folder| folder.join("xtables"));
        let Some(folder) = folder else {
            return Err(Stop::Failed(format!("{} is not linked with libxtables", program.display())));
        };
        let files = std::fs::read_dir(&folder).map_err(|error| failed(&folder, &error))?;
        for file in files.flatten().map(|file| file.path()).filter(|file| iptables::is_extension(file)) {
            image.program(&format!("/vm/xtables/{}", name_of(&file)), &file)?;
        }
    }
    Ok(())
}
