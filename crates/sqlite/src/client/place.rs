//! The place of the file: the boot of this machine, the path without links, and the suitability of
//! the disk.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use leasehold_core::{Error, ErrorKind, Result};
use rustix::fs::{
    Access, AtFlags, CWD, StatFs, StatxAttributes, StatxFlags, access, stat, statfs, statx,
};
use rustix::io::Errno;

use crate::error;

/// File systems on which locks, shared memory or FIFOs do not reach every user of a file: the numbers of statfs(2).
const REMOTE: [(i64, &str); 24] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFE53_4D42, "SMB2"),
    (0xFF53_4D42, "CIFS"),
    (0x0102_1997, "9P"),
    (0x6573_5546, "FUSE"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x7375_7245, "Coda"),
    (0x6B41_4653, "AFS"),
    (0x564C, "NCP"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0xAAD7_AAEA, "PanFS"),
    (0x0131_11A8, "IBRIX"),
    (0x6163_6673, "ACFS"),
    (0xBEEF_DEAD, "StorNext"),
    // Folders of the host of a virtual machine.
    (0x786F_4256, "vboxsf"),
    (0xBACB_ACBC, "vmhgfs"),
    (0x7C7C_6673, "prl_fs"),
];
/// The inode of the initial time namespace of the kernel.
const INITIAL_TIME: u64 = 0xEFFF_FFFA;

/// Returns the id of this boot of the machine, in which all processes share CLOCK_BOOTTIME. It
/// fails for a process with a shifted clock.
pub(crate) fn boot() -> Result<String> {
    let unsupported = |what: &str| Error::new(ErrorKind::Unsupported, what);
    if stat("/proc/self/ns/time").map_or(true, |namespace| namespace.st_ino != INITIAL_TIME) {
        let shifts = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        if shifts
            .split_whitespace()
            .any(|word| word.parse().is_ok_and(|shift: i64| shift != 0))
        {
            return Err(unsupported(
                "this process lives in a time namespace: leases in a file need the machine's own clock",
            ));
        }
    }
    // One read suffices: the id is shorter than the buffer.
    let mut id = [0; 64];
    let length =
        File::open("/proc/sys/kernel/random/boot_id").and_then(|mut file| file.read(&mut id));
    let length = length.map_err(|e| match error::no_descriptor_is_left() {
        true => error::too_many_open("/proc cannot be read"),
        false => unsupported("/proc does not say which boot this is").with_source(e),
    })?;
    match str::from_utf8(&id[..length]).map(str::trim) {
        Ok(id) if !id.is_empty() => Ok(id.to_owned()),
        _ => Err(unsupported("/proc does not say which boot this is")),
    }
}

/// The file's path without links, also if the file does not exist yet. Where the file itself is
/// counts, and not only where a link to it is.
pub(crate) fn real(path: &Path) -> Result<PathBuf> {
    let of = |e| error::of_io(&e, path, "cannot be found");
    let folder_of = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
    let mut target = path.to_owned();
    if fs::symlink_metadata(path).is_ok_and(|file| file.is_symlink()) {
        stands_on_local_disk(&folder_of(path))?;
        target = path.canonicalize().map_err(of)?;
    }
    let folder = &folder_of(&target);
    stands_on_local_disk(folder)?;
    access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| {
        error::of_io(
            &e.into(),
            folder,
            "is a directory in which we may make no files",
        )
    })?;
    let name = target.file_name().unwrap_or_default();
    let real = folder.canonicalize().map_err(of)?.join(name);
    match fs::metadata(&real) {
        Ok(file) if !file.is_file() => return Err(no_file(path)),
        Ok(_) => is_mounted_with_its_folder(&real)?,
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(of(e)),
        Err(_) => {}
    }
    Ok(real)
}

/// Refuses a file that is mounted by itself, as into a container, and one on a remote disk. The
/// log, the index and the FIFOs beside such a file are not those of its other users, and no new
/// file can be moved into its place. A file that has just been removed is not refused.
pub(crate) fn is_mounted_with_its_folder(real: &Path) -> Result<()> {
    // Linux before 5.8 does not say what is mounted.
    let asked = statx(CWD, real, AtFlags::empty(), StatxFlags::empty());
    let is_root = asked.is_ok_and(|file| {
        let known = file.stx_attributes & file.stx_attributes_mask;
        known.contains(StatxAttributes::MOUNT_ROOT)
    });
    if is_root {
        let what = "is mounted without its directory, so the files beside it are not those of its other users: mount its directory";
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("{} {what}", real.display()),
        ));
    }
    statfs(real).map_or(Ok(()), |disk| is_local(real, &disk))
}

pub(crate) fn no_file(path: &Path) -> Error {
    Error::new(ErrorKind::Invalid, format!("{} is no file", path.display()))
}

fn stands_on_local_disk(folder: &Path) -> Result<()> {
    let disk = statfs(folder).map_err(|e| {
        let what = match e {
            Errno::NOENT => "does not exist: make the directory first",
            _ => "is a directory that cannot be used",
        };
        error::of_io(&e.into(), folder, what)
    })?;
    is_local(folder, &disk)
}

fn is_local(place: &Path, disk: &StatFs) -> Result<()> {
    // The kernel's number is 32 bits wide, whatever the type of the field is.
    #[allow(clippy::unnecessary_cast, reason = "the type depends on the processor")]
    let kind = disk.f_type as i64 & 0xFFFF_FFFF;
    let Some((_, name)) = REMOTE.iter().find(|(number, _)| *number == kind) else {
        return Ok(());
    };
    let what = format!(
        "{} is on {name}: a lock file of several processes needs a local disk",
        place.display()
    );
    Err(Error::new(ErrorKind::Unsupported, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_others_have_too_is_refused_by_its_name() {
        let here = Path::new("/");
        let mut disk = statfs(here).unwrap();
        for (number, name) in [
            (0x6969, "NFS"),
            (0x1983_0326, "BeeGFS"),
            (0x786F_4256, "vboxsf"),
        ] {
            disk.f_type = number;
            let error = is_local(here, &disk).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(name), "{error}");
        }
        // ext4.
        disk.f_type = 0xEF53;
        is_local(here, &disk).unwrap();
    }
}
