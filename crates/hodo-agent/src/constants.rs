//! Constants that the assembly of all instruction sets uses under the same names. There is one macro for each piece,
//! since assembly must use every name that it is given.

/// Bytes of the shadow that are mapped at once.
pub(crate) const SHADOW_STEP: u64 = 1 << 20;
/// Records at the end of a chunk that only interrupted code uses: it has taken its place after the limit when a signal
/// handler opens the next chunk and so raises the limit. With every handler that is interrupted there, too, it is one
/// more.
pub(crate) const SPARE: u64 = 8;
/// Pieces of the shadow that are mapped by the agent at most: as many as a page can list.
pub(crate) const PIECES: u64 = 4096 / 8;
/// How often a thread looks whether another one has mapped a piece before it does without.
pub(crate) const TRIES: u64 = 1000;
/// Bytes of an event that are left alone at its end, so that the last piece's header has room.
pub(crate) const MARGIN: u64 = 32;

/// The slow paths of stubs: pieces of assembly, and the names that only they have.
macro_rules! slow_paths {
    ([$($assembly:expr),+], $($own:tt)*) => {
        core::arch::global_asm!(
            $($assembly,)+
            EPOCH = const tcb::EPOCH,
            CURSOR = const tcb::CURSOR,
            LIMIT = const tcb::LIMIT,
            BASE = const tcb::BASE,
            MAX_CHUNKS = const tcb::MAX_CHUNKS,
            SEQ = const tcb::SEQ,
            TASK = const tcb::TASK,
            LOST = const tcb::LOST,
            BUCKET = const tcb::BUCKET,
            FLAGS = const tcb::FLAGS,
            NO_CALLS = const tcb::NO_CALLS,
            SHADOW_LO = const tcb::SHADOW_LO,
            SHADOW_LEN = const tcb::SHADOW_LEN,
            SHADOW_BUSY = const tcb::SHADOW_BUSY,
            UNSHADOWED = const tcb::UNSHADOWED,
            REGION0_LO = const tcb::REGION0_LO,
            REGION0_LEN = const tcb::REGION0_LEN,
            REGION1_LO = const tcb::REGION1_LO,
            REGION1_LEN = const tcb::REGION1_LEN,
            BAD_FRAMES = const tcb::BAD_FRAMES,
            HANDED_ON = const tcb::HANDED_ON,
            BAD_ID = const tcb::BAD_ID,
            BAD_ENTRY = const tcb::BAD_ENTRY,
            BAD_EXIT = const tcb::BAD_EXIT,
            OWNER = const file_header::OWNER,
            OWNER_DIED = const file_header::OWNER_DIED,
            NEXT_CHUNK = const file_header::NEXT_CHUNK,
            ROOM_CHUNKS = const file_header::ROOM_CHUNKS,
            H_SEQ = const chunk_header::SEQ,
            H_TASK = const chunk_header::TASK,
            H_EPOCH = const chunk_header::EPOCH,
            H_LOST = const chunk_header::LOST,
            RECORD_SIZE = const RECORD_SIZE,
            KIND_SHIFT = const record::KIND_SHIFT,
            TAIL = const record::TAIL,
            CHUNK_MAGIC = const CHUNK_MAGIC,
            CHUNK_LIMIT = const CHUNK_SIZE - SPARE * RECORD_SIZE,
            CHUNK_SHIFT = const CHUNK_SIZE.trailing_zeros(),
            CHUNK_HEADER_SIZE = const CHUNK_HEADER_SIZE,
            HEADER_AND_RECORD = const CHUNK_HEADER_SIZE + RECORD_SIZE,
            CONTROL_SIZE = const CONTROL_SIZE,
            BUCKET_SIZE = const BUCKET_SIZE,
            BUCKET_ROOM = const BUCKET_ROOM,
            RECORD_SHIFT = const RECORD_SIZE.trailing_zeros(),
            EPOCH_INFO = const (record::SPECIAL << record::KIND_SHIFT) | record::SPECIAL_EPOCH,
            SHADOW_STEP = const SHADOW_STEP,
            PIECES = const PIECES,
            TRIES = const TRIES,
            $($own)*
        );
    };
}

/// The code around system calls: assembly, and the names that only it has.
macro_rules! around_system_calls {
    ($assembly:literal, $($own:tt)*) => {
        core::arch::global_asm!(
            $assembly,
            SLOTS = const tcb::SYSCALLS,
            LIMIT = const tcb::LIMIT,
            NUMBERS = const NUMBERS,
            ENTRY_SIZE = const ENTRY_SIZE,
            HEADER = const HEADER,
            MARGIN = const MARGIN,
            PAYLOAD = const header::PAYLOAD,
            EVENT = const header::EVENT,
            BUFFER = const header::BUFFER,
            STRING = const header::STRING,
            TEXT = const kind::TEXT,
            FIXED = const kind::FIXED,
            SIZED = const kind::SIZED,
            RESULT = const kind::RESULT,
            TEXTS = const kind::TEXTS,
            PARTS = const kind::PARTS,
            SPECIAL = const kind::SPECIAL,
            MESSAGE = const kind::MESSAGE,
            WAIT = const kind::WAIT,
            NAME = const kind::NAME,
            LOCK = const kind::LOCK,
            DEVICE = const kind::DEVICE,
            LOCKS = const kind::LOCKS,
            DEVICE_FIRST = const kind::DEVICE_FIRST,
            DEVICES = const kind::DEVICES,
            WAITING = const kind::WAITING,
            $($own)*
        );
    };
}
