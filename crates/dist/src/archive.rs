//! Archives that depend on nothing but their contents: sorted names, one date, owner root, no times of compression.

use std::io::Write;

use anyhow::Context;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use crate::source_date::SourceDate;

/// A file or link of an archive, by its path without `/` in front.
#[derive(Debug, Clone)]
pub struct Packed {
    path: String,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    File { mode: u32, bytes: Vec<u8> },
    Link { to: String },
}

impl Packed {
    /// A file that everyone may read.
    pub fn file(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), content: Content::File { mode: 0o644, bytes: bytes.into() } }
    }

    /// A file that everyone may run.
    pub fn program(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), content: Content::File { mode: 0o755, bytes: bytes.into() } }
    }

    /// A symbolic link.
    pub fn link(path: impl Into<String>, to: impl Into<String>) -> Self {
        Self { path: path.into(), content: Content::Link { to: to.into() } }
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Bytes on disk, without those of the file system.
    pub fn size(&self) -> u64 {
        match &self.content {
            Content::File { bytes, .. } => bytes.len() as u64,
            Content::Link { .. } => 0,
        }
    }
}

/// Whether folders have entries of their own: dpkg wants them, helm does not write them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderEntries {
    Listed,
    Implied,
}

/// A tar file, with `prefix` in front of every path (`./`, `zoneward-0.1.0/`, or nothing).
pub fn tar(
    prefix: &str,
    files: &[Packed],
    folders: FolderEntries,
    date: SourceDate,
) -> anyhow::Result<Vec<u8>> {
    let mut sorted: Vec<(String, Option<&Content>)> =
        files.iter().map(|file| (format!("{prefix}{}", file.path), Some(&file.content))).collect();
    if folders == FolderEntries::Listed {
        let parents: Vec<String> = sorted.iter().flat_map(|(path, _)| parents(path)).collect();
        sorted.extend(parents.into_iter().map(|path| (path, None)));
    }
    sorted.sort_by(|one, other| one.0.cmp(&other.0));
    sorted.dedup_by(|one, other| one.0 == other.0);
    let mut archive = Builder::new(Vec::new());
    for (path, content) in sorted {
        append(&mut archive, &path, content, date).with_context(|| format!("packing {path}"))?;
    }
    archive.into_inner().context("packing")
}

/// The folders above a path, each with `/` at its end.
fn parents(path: &str) -> Vec<String> {
    path.match_indices('/').map(|(end, _)| path[..=end].to_owned()).collect()
}

fn append(
    archive: &mut Builder<Vec<u8>>,
    path: &str,
    content: Option<&Content>,
    date: SourceDate,
) -> std::io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mtime(date.epoch());
    header.set_username("root")?;
    header.set_groupname("root")?;
    let (kind, mode, bytes) = match content {
        None => (EntryType::Directory, 0o755, &[][..]),
        Some(Content::File { mode, bytes }) => (EntryType::Regular, *mode, &bytes[..]),
        Some(Content::Link { .. }) => (EntryType::Symlink, 0o777, &[][..]),
    };
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(bytes.len() as u64);
    // `set_path` drops a leading `./`, which dpkg writes and expects: short names are set as they are.
    let name = &mut header.as_old_mut().name;
    match content {
        Some(Content::Link { to }) if path.len() < name.len() => {
            name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_link_name(to)?;
            header.set_cksum();
            archive.append(&header, bytes)
        }
        Some(Content::Link { to }) => archive.append_link(&mut header, path, to),
        _ if path.len() < name.len() => {
            name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            archive.append(&header, bytes)
        }
        _ => archive.append_data(&mut header, path, bytes),
    }
}

/// gzip at its best level, without name and time.
pub fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).context("compressing")
}

/// An archive of `ar`, which is what a .deb is: members in the order given, with names of at most 16 characters.
pub fn ar(members: &[(&str, &[u8])], date: SourceDate) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        // Name, date, owner, group, mode, size, end mark: columns of fixed width, filled with spaces.
        let header =
            format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", date.epoch(), 0, 0, 100_644, bytes.len());
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(bytes);
        if !bytes.len().is_multiple_of(2) {
            archive.push(b'\n');
        }
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: SourceDate = SourceDate::new(1_700_000_000);

    fn names(bytes: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(bytes);
        let entries = archive.entries().expect("a tar file");
        let name = |entry: tar::Entry<'_, &[u8]>| String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        entries.map(|entry| name(entry.expect("an entry"))).collect()
    }

    #[test]
    fn order_of_files_does_not_matter_and_folders_come_first() {
        let long = format!("b/{}", "x".repeat(120));
        let (one, two) = (Packed::file("b/two", "2"), Packed::program("a", "1"));
        let (three, link) = (Packed::file(long.clone(), "3"), Packed::link("b/link", "two"));
        let files = [one.clone(), two.clone(), three.clone(), link.clone()];
        let forward = tar("./", &files, FolderEntries::Listed, DATE).expect("packs");
        let backward = tar("./", &[link, three, two, one], FolderEntries::Listed, DATE).expect("packs");
        assert_eq!(forward, backward);
        let long = format!("./{long}");
        // What does not fit into a header has its name in an entry before it, which drops `./`.
        let seen = names(&forward);
        assert_eq!(seen[..5], ["./", "./a", "./b/", "./b/link", "./b/two"]);
        assert!(seen[5].ends_with(long.trim_start_matches("./")), "{}", seen[5]);
        assert_eq!(
            names(&tar("top/", &files[..2], FolderEntries::Implied, DATE).expect("packs")),
            ["top/a", "top/b/two"]
        );
    }

    #[test]
    fn members_of_ar_begin_at_even_offsets() {
        let archive = ar(&[("debian-binary", b"odd"), ("data", b"x")], DATE);
        assert_eq!(archive.len(), 8 + 60 + 4 + 60 + 2);
        assert!(archive[72..].starts_with(b"data            1700000000  0     0     100644  1         `\n"));
    }
}
