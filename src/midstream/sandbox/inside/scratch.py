"""Empty a directory that foreign code wrote into, however deep, long, odd or locked its files are."""

import errno
import os


def empty(directory: int) -> None:
    """Remove everything beneath an open directory, into which no process writes any more.

    Nested directories are moved to the top before they are removed, so that depth costs neither stack nor path length,
    and a directory without rights gets them first. Raises `OSError` if something cannot be removed.
    """
    while names := os.listdir(directory):
        for name in names:
            if _removed(name, directory):
                continue
            # The rights that its removal needs; it is no link.
            os.chmod(name, 0o700, dir_fd=directory)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            try:
                for below in os.listdir(inner):
                    if not _removed(below, inner):
                        os.chmod(below, 0o700, dir_fd=inner)
                        os.rename(below, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=directory)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=directory)


def _removed(name: str, directory: int) -> bool:
    """Remove an entry; returns False if it is a directory that is not empty."""
    try:
        os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        # Linux says EISDIR of a directory, others EPERM.
        try:
            os.rmdir(name, dir_fd=directory)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False
    return True


def remove(path: str) -> None:
    """Remove a directory and everything beneath it; one that is gone already is fine. Raises as `empty`."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        empty(directory)
    finally:
        os.close(directory)
    os.rmdir(path)
