//! The file of the audit log, rotated by size: `audit.log` becomes `audit-2026-01-31T12-00-00.000.log`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

pub(super) struct LogFile {
    /// `None` for standard output.
    path: Option<PathBuf>,
    writer: Box<dyn Write + Send>,
    size: u64,
    max_size: u64,
    max_backups: usize,
}

impl LogFile {
    pub(super) fn open(path: PathBuf, max_size: u64, max_backups: usize) -> io::Result<Self> {
        if path == Path::new("-") {
            let writer = Box::new(BufWriter::new(io::stdout()));
            return Ok(Self { path: None, writer, size: 0, max_size: 0, max_backups });
        }
        let (writer, size) = open(&path)?;
        Ok(Self { path: Some(path), writer, size, max_size, max_backups })
    }

    /// Writes a line; rotates before it if the file would become too large.
    pub(super) fn write(&mut self, line: &[u8], now: Timestamp) -> io::Result<()> {
        let length = line.len() as u64;
        if self.max_size > 0 && self.size > 0 && self.size.saturating_add(length) > self.max_size {
            self.rotate(now)?;
        }
        self.size += length;
        self.writer.write_all(line)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        self.writer.flush()?;
        let (stem, extension) = parts(&path);
        let time = format!("{now:.3}").replace(':', "-");
        let time = time.trim_end_matches('Z');
        let mut target = path.with_file_name(format!("{stem}-{time}{extension}"));
        let mut count = 0;
        while target.exists() {
            count += 1;
            target = path.with_file_name(format!("{stem}-{time}-{count}{extension}"));
        }
        match fs::rename(&path, target) {
            // Moved away or deleted by others.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        (self.writer, self.size) = open(&path)?;
        if self.max_backups > 0 {
            remove_old(&path, self.max_backups)?;
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<(Box<dyn Write + Send>, u64)> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let file: File = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(named)?;
    let size = file.metadata()?.len();
    Ok((Box::new(BufWriter::new(file)), size))
}

/// The name of a file before and after the time that rotation inserts.
fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
    let extension = text(path.extension()).map(|extension| format!(".{extension}"));
    (text(path.file_stem()).unwrap_or_default(), extension.unwrap_or_default())
}

/// Keeps the newest rotated files; their names sort by time.
fn remove_old(path: &Path, keep: usize) -> io::Result<()> {
    let (stem, extension) = parts(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut rotated = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let time = name.strip_prefix(&format!("{stem}-")).and_then(|rest| rest.strip_suffix(&extension));
        if time.is_some_and(|time| time.starts_with(|c: char| c.is_ascii_digit()) && time.contains('T')) {
            rotated.push(folder.join(name));
        }
    }
    rotated.sort();
    let surplus = rotated.len().saturating_sub(keep);
    rotated.into_iter().take(surplus).try_for_each(fs::remove_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("zoneward-log-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn files(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_log_goes_on_after_its_file_was_moved_away() {
        let folder = folder("moved");
        let path = folder.join("audit.log");
        let mut log = LogFile::open(path.clone(), 10, 2).unwrap();
        log.write(b"12345678\n", Timestamp::UNIX_EPOCH).unwrap();
        log.flush().unwrap();
        fs::rename(&path, folder.join("taken")).unwrap();
        for line in [b"abcdefgh\n", b"ABCDEFGH\n"] {
            log.write(line, Timestamp::UNIX_EPOCH).unwrap();
        }
        log.flush().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "ABCDEFGH\n");
        assert_eq!(files(&folder), ["audit-1970-01-01T00-00-00.000.log", "audit.log", "taken"]);
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn the_oldest_rotated_files_go_first_and_others_stay() {
        let folder = folder("kept");
        fs::write(folder.join("audit-notes.log"), "").unwrap();
        let mut log = LogFile::open(folder.join("audit.log"), 1, 2).unwrap();
        for second in 0..5 {
            log.write(b"line\n", Timestamp::from_second(second).unwrap()).unwrap();
        }
        log.flush().unwrap();
        let rotated = ["audit-1970-01-01T00-00-03.000.log", "audit-1970-01-01T00-00-04.000.log"];
        assert_eq!(files(&folder), [rotated[0], rotated[1], "audit-notes.log", "audit.log"]);
        let _ = fs::remove_dir_all(&folder);
    }
}
