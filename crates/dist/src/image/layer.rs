//! The root filesystem of the image, from scratch: the program, two users, the order of name resolution, licences.
//!
//! No certificates: the API's authority comes with the service account or the kubeconfig, and nothing else is called. No
//! shell, no /tmp: every role runs on a read-only root.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use crate::source_date::SourceDate;

const PASSWD: &str = "\
root:x:0:0:root:/:/usr/sbin/nologin
nonroot:x:65532:65532:nonroot:/:/usr/sbin/nologin
";

const GROUP: &str = "\
root:x:0:
nonroot:x:65532:
";

/// glibc without this file asks DNS before /etc/hosts; the kubelet writes hostAliases to the latter.
const NSSWITCH: &str = "\
passwd: files
group: files
hosts: files dns
";

/// The layer before compression.
pub(super) fn tar(program: &Path, documents: &[&Path], created: SourceDate) -> anyhow::Result<Vec<u8>> {
    let mut layer = Layer { tar: Builder::new(Vec::new()), created };
    layer.folder("etc/")?;
    layer.file("etc/group", 0o644, GROUP.as_bytes())?;
    layer.file("etc/nsswitch.conf", 0o644, NSSWITCH.as_bytes())?;
    layer.file("etc/passwd", 0o644, PASSWD.as_bytes())?;
    for folder in ["usr/", "usr/bin/"] {
        layer.folder(folder)?;
    }
    layer.file("usr/bin/zoneward", 0o755, &super::read(program)?)?;
    for folder in ["usr/share/", "usr/share/doc/", "usr/share/doc/zoneward/"] {
        layer.folder(folder)?;
    }
    let mut documents = documents.to_vec();
    documents.sort_unstable_by_key(|document| document.file_name());
    for document in documents {
        let name = document.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{}: expected the name of a file", document.display()))?;
        layer.file(&format!("usr/share/doc/zoneward/{name}"), 0o644, &super::read(document)?)?;
    }
    layer.tar.into_inner().context("ending the layer")
}

/// Without file name, time and operating system in the header: the same bytes everywhere.
pub(super) fn gzip(tar: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::best());
    gzip.write_all(tar).and_then(|()| gzip.finish()).context("compressing the layer")
}

struct Layer {
    tar: Builder<Vec<u8>>,
    created: SourceDate,
}

impl Layer {
    fn folder(&mut self, path: &str) -> anyhow::Result<()> {
        self.entry(path, EntryType::Directory, 0o755, &[])
    }

    fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> anyhow::Result<()> {
        self.entry(path, EntryType::Regular, mode, content)
    }

    fn entry(&mut self, path: &str, kind: EntryType, mode: u32, content: &[u8]) -> anyhow::Result<()> {
        append(&mut self.tar, path, kind, mode, content, self.created)
    }
}

/// Adds an entry that belongs to root and was changed at the date of the commit.
pub(super) fn append<W: Write>(
    tar: &mut Builder<W>,
    path: &str,
    kind: EntryType,
    mode: u32,
    content: &[u8],
    created: SourceDate,
) -> anyhow::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(created.epoch());
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(content.len().try_into().context("the size of a file")?);
    tar.append_data(&mut header, path, content).with_context(|| format!("adding {path}"))
}
