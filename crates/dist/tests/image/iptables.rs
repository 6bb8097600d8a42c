//! The programs of iptables in the image that has them: complete, named in the SBOM, and of use to the node proxy with the rights that
//! the chart gives in mode iptables.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dist::image::ImageVariant;
use fixtures::eventually;
use serde_json::Value;
use toolbox::iptables;

use super::container::Runtime;
use super::manifests::node_of_chart;
use super::node::Node;
use super::roles::{NET_ADMIN, assert_rights, shop, slice, start_ready};
use super::{Scratch, readers, run};

const NET_RAW: u64 = 1 << 13;

/// Rules with the matches and targets of kube-proxy.
const RULES: &str = "\
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-TEST - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-SERVICES -p tcp -m tcp --dport 80 -m addrtype --dst-type LOCAL -j KUBE-SVC-TEST
-A KUBE-SVC-TEST -m statistic --mode random --probability 0.5 -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SVC-TEST -m conntrack --ctstate NEW -j RETURN
COMMIT
";

/// The SBOM of the image has each pinned package with version, digest and licence.
pub(crate) fn assert_named(sbom: &Value) {
    let pins = dist::debian::parse_pins(include_str!("../../debian-packages.txt"), "amd64").unwrap();
    for pin in pins {
        let is_it = |component: &&Value| component["name"] == pin.name.as_str();
        let found = sbom["components"].as_array().unwrap().iter().find(is_it);
        let found = found.unwrap_or_else(|| panic!("{} is not in the SBOM", pin.name));
        assert_eq!(found["version"], pin.version.as_str());
        assert_eq!(found["hashes"][0]["content"], pin.checksum.as_str());
        assert_eq!(found["licenses"][0]["expression"], pin.licence.as_str());
        assert!(found["purl"].as_str().unwrap().starts_with("pkg:deb/debian/"), "{found}");
    }
    let scratch = Scratch::new("image-sbom");
    fs::write(scratch.path("image.cdx.json"), sbom.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages/validate_sbom.py");
    let mut python = toolbox::command("python3-cyclonedx");
    let said = run(python.arg(script).arg(scratch.path("image.cdx.json")));
    assert!(said.starts_with("valid"), "{said}");
}

/// Files of the layer that are programs, extensions or libraries.
fn linked(rootfs: &Path) -> Vec<PathBuf> {
    let libraries = rootfs.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let folders = [rootfs.join("usr/sbin"), libraries.clone(), libraries.join("xtables")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap().flatten());
    let files: Vec<PathBuf> = files.map(|file| file.path()).filter(|file| file.is_file()).collect();
    assert!(files.len() > 120, "{}", files.len());
    files
}

#[test]
fn every_program_and_extension_finds_its_libraries_in_the_image() {
    let scratch = Scratch::new("libraries");
    let rootfs = readers::unpack(&scratch, ImageVariant::Iptables).join("rootfs");
    let loader = fs::read_dir(rootfs.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH))).unwrap();
    let loader = loader.flatten().find(|file| file.file_name().to_string_lossy().starts_with("ld-linux"));
    let inside = |path: &Path| Path::new("/").join(path.strip_prefix(&rootfs).unwrap());
    let loader = inside(&loader.unwrap().path());
    for file in linked(&rootfs) {
        // The image's own loader, which sees nothing of this machine.
        let mut list = Command::new("chroot");
        let said = run(list.arg(&rootfs).arg(&loader).arg("--list").arg(inside(&file)));
        assert!(!said.contains("not found"), "{}: {said}", file.display());
    }
    for package in ["iptables", "libc6", "libxtables12"] {
        let text = fs::read_to_string(rootfs.join(format!("usr/share/doc/{package}/copyright"))).unwrap();
        assert!(text.contains("common-licenses/GPL-2"), "{package}");
    }
    for licence in ["GPL-2", "LGPL-2.1"] {
        assert!(rootfs.join("usr/share/common-licenses").join(licence).is_file(), "{licence}");
    }
}

/// Loads and lists the rules with a program of the image, which sees nothing of this machine, in a network namespace of its
/// own. A user namespace has every capability, also on machines whose root lacks some; the program gets those of the chart
/// (and SYS_CHROOT, for the command before it).
const LOAD: &str = "\
root=$1
program=$2
mkdir -p \"$root/proc\" \"$root/run\"
mount --rbind /proc \"$root/proc\"
run() { setpriv --bounding-set=-all,+net_admin,+net_raw,+sys_chroot chroot \"$root\" \"$@\"; }
run \"$program-restore\" -w 5 --noflush /rules
run \"$program-save\" -t nat
run \"$program\" -w 5 -t nat -S KUBE-SVC-TEST
";

#[test]
fn both_flavours_load_and_list_rules_of_both_families() {
    let scratch = Scratch::new("rules");
    let rootfs = readers::unpack(&scratch, ImageVariant::Iptables).join("rootfs");
    fs::write(rootfs.join("rules"), RULES).unwrap();
    for flavour in iptables::FLAVOURS {
        for family in ["iptables", "ip6tables"] {
            let program = format!("/usr/sbin/{family}-{flavour}");
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--net", "--mount", "sh", "-euc", LOAD, "sh"]);
            let saved = run(command.arg(&rootfs).arg(&program));
            for rule in RULES.lines().filter(|line| line.starts_with("-A KUBE")) {
                // The kernel rounds the probability.
                let start = rule.split(" --probability").next().unwrap();
                assert_eq!(saved.matches(start).count(), 1 + usize::from(rule.contains("A KUBE-SVC-TEST")));
            }
            let comment = if flavour == "nft" { "nft" } else { "" };
            assert!(saved.contains(&format!("# Generated by {family}-{comment}")), "{program}: {saved}");
        }
    }
}

#[test]
fn mode_iptables_of_the_chart_carries_a_connection_in_both_flavours() {
    let role = node_of_chart("node.config.mode=iptables");
    assert_eq!(role.capabilities("add"), ["CAP_NET_ADMIN", "CAP_NET_RAW"]);
    for flavour in iptables::FLAVOURS {
        let runtime = Runtime::new(&format!("mode-{flavour}"), ImageVariant::Iptables);
        let node = shop(&runtime);
        node.apply(&slice());
        // The flavour of a node is the one in which the kubelet has its chains.
        for family in ["iptables", "ip6tables"] {
            let mut command = node.command(&format!("{family}-{flavour}"));
            command.args(["-t", "mangle", "-N", "KUBE-KUBELET-CANARY"]);
            run(command.env("XTABLES_LOCKFILE", runtime.scratch.path("kubelet.lock")));
        }
        let mut proxy = start_ready(&runtime, &node, &role);
        assert_rights(&proxy, 0, NET_ADMIN | NET_RAW);
        eventually("a connection through the cluster IP", || {
            node.get("http://10.96.0.7/livez").is_some_and(|answer| answer.contains("ok"))
        });
        let saved = run(node.command(&format!("iptables-{flavour}-save")).args(["-t", "nat"]));
        assert!(saved.contains("default/web:http"), "{flavour}: {saved}");
        assert_eq!(proxy.stop(), Some(0), "{}", proxy.log());
        leave(&runtime, &node, flavour);
    }
}

/// Mode nftables with the same tag removes the chains after its first sync.
fn leave(runtime: &Runtime, node: &Node, flavour: &str) {
    let role = node_of_chart("image.tag=0.0.0-iptables");
    let mut proxy = start_ready(runtime, node, &role);
    eventually("the chains are removed", || {
        let saved = run(node.command(&format!("iptables-{flavour}-save")).args(["-t", "nat"]));
        !saved.contains("KUBE-SVC-")
    });
    let answer = node.get("http://10.96.0.7/livez");
    assert!(answer.is_some_and(|answer| answer.contains("ok")), "{flavour}: {}", proxy.log());
    assert_eq!(proxy.stop(), Some(0), "{}", proxy.log());
}

#[test]
fn plain_image_says_that_chains_of_mode_iptables_are_left() {
    let runtime = Runtime::new("left", ImageVariant::Plain);
    let node = shop(&runtime);
    run(node.command("iptables-nft").args(["-t", "nat", "-N", "KUBE-SVC-ZONEWARD"]));
    let mut proxy = start_ready(&runtime, &node, &node_of_chart("node.config.mode=nftables"));
    eventually("an Event", || {
        let events = node.list(&["events", "-A"]);
        events.iter().any(|event| event["reason"] == "IptablesChainsLeft")
    });
    assert_eq!(proxy.stop(), Some(0), "{}", proxy.log());
}
