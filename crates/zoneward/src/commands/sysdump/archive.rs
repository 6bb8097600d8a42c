//! The bounded archive with its index.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::redact::Redactor;
use super::{DumpPart, never};

/// The largest part; the rest of it is cut.
const LONGEST_PART: usize = 8 << 20;

/// Numbers for the last line.
pub(super) struct ArchiveSummary {
    pub(super) parts: usize,
    pub(super) left_out: usize,
    pub(super) removed: usize,
}

pub(super) struct Archive {
    limit: usize,
    used: usize,
    files: Vec<(String, Vec<u8>)>,
    index: Vec<Value>,
    left_out: Vec<Value>,
    removed: usize,
}

impl Archive {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: 0, files: Vec::new(), index: Vec::new(), left_out: Vec::new(), removed: 0 }
    }

    /// Redacts a part and takes as much of it as the bounds allow.
    pub(super) fn add(&mut self, part: &DumpPart, redactor: &Redactor) {
        let (text, removed) = redactor.redact(&part.text);
        let room = LONGEST_PART.min(self.limit.saturating_sub(self.used));
        let kept = cut(&text, room, part.keeps_end);
        if kept.is_empty() && !text.is_empty() {
            self.leave_out(part.file.clone(), format!("beyond --max-size, {} bytes", text.len()));
            return;
        }
        self.used += kept.len();
        self.removed += removed;
        let mut entry = json!({"file": part.file, "source": redactor.text(&part.source), "bytes": kept.len(),
            "removedSecrets": removed});
        if kept.len() < text.len() {
            let which = if part.keeps_end { "the end" } else { "the beginning" };
            entry["cut"] = format!("{which} of {} bytes", text.len()).into();
        }
        self.index.push(entry);
        self.files.push((part.file.clone(), kept.as_bytes().to_vec()));
    }

    pub(super) fn leave_out(&mut self, what: String, reason: String) {
        self.left_out.push(json!({"what": what, "reason": reason}));
    }

    /// Writes a new file that only its owner can read.
    pub(super) fn write(mut self, path: &Path, seconds: u64, created: &str) -> Result<ArchiveSummary> {
        let index = json!({
            "zoneward": env!("CARGO_PKG_VERSION"),
            "created": created,
            "parts": self.index,
            "leftOut": self.left_out,
            "neverIncluded": never(),
        });
        let text = serde_json::to_string_pretty(&index).context("writing the index")?;
        self.files.insert(0, ("index.json".to_owned(), text.into_bytes()));
        let bytes = self.packed(seconds)?;
        let writing = || format!("writing {}", path.display());
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).with_context(writing)?;
        if let Err(error) = file.write_all(&bytes).and_then(|()| file.sync_all()) {
            // Half an archive helps no report.
            let _ = std::fs::remove_file(path);
            return Err(error).with_context(writing);
        }
        Ok(ArchiveSummary { parts: self.index.len(), left_out: self.left_out.len(), removed: self.removed })
    }

    fn packed(&self, seconds: u64) -> Result<Vec<u8>> {
        let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for (name, content) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(u64::try_from(content.len()).unwrap_or(u64::MAX));
            header.set_mode(0o600);
            header.set_mtime(seconds);
            builder
                .append_data(&mut header, format!("zoneward-sysdump/{name}"), content.as_slice())
                .with_context(|| format!("packing {name}"))?;
        }
        builder.into_inner().and_then(GzEncoder::finish).context("packing")
    }
}

/// At most so many bytes, up to the end or from the beginning of a line.
fn cut(text: &str, room: usize, keeps_end: bool) -> &str {
    if text.len() <= room {
        return text;
    }
    if keeps_end {
        let mut from = text.len() - room;
        while !text.is_char_boundary(from) {
            from += 1;
        }
        let rest = &text[from..];
        return rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    let mut to = room;
    while !text.is_char_boundary(to) {
        to -= 1;
    }
    let head = &text[..to];
    // Objects are separate documents: none is cut in two.
    let end = head.rfind("\n---\n").or_else(|| head.rfind('\n')).map_or(0, |end| end + 1);
    &head[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_at_lines_and_documents() {
        assert_eq!(cut("one\ntwo\nthree\n", 9, false), "one\ntwo\n");
        assert_eq!(cut("one\ntwo\nthree\n", 9, true), "three\n");
        assert_eq!(cut("a: 1\nb: 2\n---\na: 3\nb: 4\n", 20, false), "a: 1\nb: 2\n");
        assert_eq!(cut("äöü", 3, false), "");
        assert_eq!(cut("short", 10, true), "short");
    }
}
