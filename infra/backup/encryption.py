"""encryption.py - encrypts the files of a backup, and reads them back. Needs the command `openssl`.

A random or derived key encrypts (AES-256-CTR) and authenticates (HMAC-SHA256 over what is on the disk). Nothing is
decrypted before its code has been compared. `encryption.json` in the backup's folder has the codes, and the key:

- by a passphrase: the salt of scrypt, which derives the key;
- for a recipient: the key, encrypted with an RSA public key (OAEP). Only the private key reads the backup, so the
  machine that makes backups cannot."""

import hashlib
import hmac
import json
import os
import secrets
import stat
import subprocess
import threading

FORMAT = 1
NAME = "encryption.json"
SUFFIX = ".enc"
# scrypt: 64 MiB and about a fifth of a second for each guess.
COST = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 1 << 27}
PASSPHRASE_LENGTH_MIN = 12
KEY_BYTES = 32
BLOCK_BYTES = 1 << 20
OAEP = ["-pkeyopt", "rsa_padding_mode:oaep", "-pkeyopt", "rsa_oaep_md:sha256"]


class Unsealed(Exception):
    """The backup cannot be encrypted, or not be read."""


def openssl(arguments, content):
    try:
        done = subprocess.run(["openssl"] + arguments, input=content, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise Unsealed("encryption needs the command openssl") from None
    if done.returncode != 0:
        raise Unsealed("openssl %s: %s" % (arguments[0], done.stderr.decode(errors="replace").strip()))
    return done.stdout


def passphrase(file):
    """The first line of a file that nobody else can read."""
    mode = os.stat(file).st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Unsealed("%s can be read by other users: chmod 600 %s" % (file, file))
    with open(file, "rb") as content:
        line = content.readline().rstrip(b"\r\n")
    if len(line) < PASSPHRASE_LENGTH_MIN:
        raise Unsealed("the passphrase in %s has fewer than %d characters" % (file, PASSPHRASE_LENGTH_MIN))
    return line


def derived(words, salt):
    return hashlib.scrypt(words, salt=salt, dklen=KEY_BYTES, **COST)


class Seal:
    """The key of one backup, and the codes of its files."""

    def __init__(self, key, how):
        self.how = how
        self.codes = {}
        self.password = hmac.new(key, b"braid backup: encryption", hashlib.sha256).hexdigest().encode()
        self.of_codes = hmac.new(key, b"braid backup: codes", hashlib.sha256).digest()

    @classmethod
    def new(cls, passphrase_file=None, recipient=None):
        if recipient is not None:
            key = secrets.token_bytes(KEY_BYTES)
            wrapped = openssl(["pkeyutl", "-encrypt", "-pubin", "-inkey", str(recipient)] + OAEP, key)
            return cls(key, {"kind": "recipient", "key": wrapped.hex()})
        salt = secrets.token_bytes(16)
        return cls(derived(passphrase(passphrase_file), salt), {"kind": "passphrase", "salt": salt.hex()})

    @classmethod
    def open(cls, folder, passphrase_file=None, private_key=None):
        """None: the backup is not encrypted."""
        try:
            written = json.loads((folder / NAME).read_text())
        except FileNotFoundError:
            if passphrase_file is not None or private_key is not None:
                # Otherwise a folder that was replaced by another would be restored.
                raise Unsealed("%s is not encrypted: leave the key out to read it" % folder) from None
            return None
        except ValueError as error:
            raise Unsealed("%s/%s: %s" % (folder, NAME, error)) from None
        if written.get("format") != FORMAT:
            raise Unsealed("%s/%s has format %r, and this program reads %d" % (folder, NAME, written.get("format"), FORMAT))
        how = written["how"]
        if how["kind"] == "recipient":
            if private_key is None:
                raise Unsealed("%s is encrypted for a recipient: --private-key FILE reads it" % folder)
            key = openssl(["pkeyutl", "-decrypt", "-inkey", str(private_key)] + OAEP, bytes.fromhex(how["key"]))
        else:
            if passphrase_file is None:
                raise Unsealed("%s is encrypted with a passphrase: --passphrase-file FILE reads it" % folder)
            key = derived(passphrase(passphrase_file), bytes.fromhex(how["salt"]))
        seal = cls(key, how)
        seal.codes = written["codes"]
        return seal

    def code(self, name):
        return hmac.new(self.of_codes, name.encode() + b"\0", hashlib.sha256)

    def cipher(self, *arguments, **streams):
        """`openssl enc`, with its password on a descriptor of its own: other users see arguments."""
        reading, writing = os.pipe()
        try:
            os.write(writing, self.password + b"\n")
            os.close(writing)
            # The password is random, so more rounds would add nothing.
            command = ["openssl", "enc", "-aes-256-ctr", "-pbkdf2", "-iter", "1", "-md", "sha256", "-pass", "fd:%d" % reading]
            return subprocess.Popen(command + list(arguments), pass_fds=(reading,), stderr=subprocess.PIPE, **streams)
        except FileNotFoundError:
            raise Unsealed("encryption needs the command openssl") from None
        finally:
            os.close(reading)

    def write(self, source, folder, name):
        """Encrypts a stream into the file `name.enc`; returns the SHA-256 of what came."""
        process = self.cipher("-e", "-salt", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        plain, failed = hashlib.sha256(), []

        def feed():
            try:
                with process.stdin:
                    while block := source.read(BLOCK_BYTES):
                        plain.update(block)
                        process.stdin.write(block)
            except OSError as error:
                failed.append(error)

        # An interruption waits for no source.
        feeding = threading.Thread(target=feed, daemon=True)
        feeding.start()
        code = self.code(name)
        try:
            with open(os.open(folder / (name + SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                while block := process.stdout.read(BLOCK_BYTES):
                    code.update(block)
                    file.write(block)
        except BaseException:
            process.kill()
            raise
        feeding.join()
        self.ended(process)
        if failed:
            raise Unsealed("%s: %s" % (name, failed[0]))
        self.codes[name] = code.hexdigest()
        return plain.hexdigest()

    def note(self, folder, name):
        """The code of a file that stays in clear."""
        code = self.code(name)
        code.update((folder / name).read_bytes())
        self.codes[name] = code.hexdigest()

    def keep(self, folder):
        with open(os.open(folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"format": FORMAT, "how": self.how, "codes": self.codes}, file, indent=1)

    def verify(self, folder, name):
        """Refuses a file that is not what was written, or whose key is another one."""
        path = folder / (name + SUFFIX)
        code = self.code(name)
        with open(path if path.exists() else folder / name, "rb") as file:
            while block := file.read(BLOCK_BYTES):
                code.update(block)
        if not hmac.compare_digest(code.hexdigest(), self.codes.get(name, "")):
            raise Unsealed("%s/%s is not what was written, or the key is another one" % (folder, name))

    def read(self, folder, name):
        """A process whose output is the file in clear; `ended` must follow."""
        self.verify(folder, name)
        return self.cipher("-d", "-in", str(folder / (name + SUFFIX)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    @staticmethod
    def ended(process):
        said = process.stderr.read().decode(errors="replace").strip()
        process.stderr.close()
        if process.stdout is not None:
            process.stdout.close()
        if process.wait() != 0:
            raise Unsealed("openssl enc: %s" % said)
