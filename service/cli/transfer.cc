// SPDX-License-Identifier: Apache-2.0
//
// torpor export | import.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/cli/context.h"
#include "service/container_client.h"
#include "service/unique_fd.h"
#include "store/container_reader.h"

namespace torpor::service::cli {
namespace {

using store::ContainerReader;

constexpr size_t kReadBytes = size_t{1} << 20;

absl::Status FileError(const char* what, const std::string& path) {
  const int error = errno;
  return absl::Status(
      absl::ErrnoToStatusCode(error),
      absl::StrFormat("%s %s: %s", what, path, std::strerror(error)));
}

// Reads a file from `offset` to its end, as far as `take` takes it.
absl::Status ReadThrough(int fd, const std::string& path, uint64_t offset,
                         const ContainerBytes& take) {
  std::string buffer(kReadBytes, '\0');
  for (;;) {
    const ssize_t n =
        pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("read", path);
    if (n == 0) return absl::OkStatus();
    offset += static_cast<uint64_t>(n);
    TORPOR_RETURN_IF_ERROR(take({buffer.data(), static_cast<size_t>(n)}));
  }
}

absl::Status WriteAll(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

std::span<const uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

void ShowBytes(const char* verb, uint64_t so_far, uint64_t total) {
  ShowProgress(total == 0 ? absl::StrFormat("%s %s", verb, Bytes(so_far))
                          : absl::StrFormat("%s %s of %s", verb, Bytes(so_far),
                                            Bytes(total)));
}

// ---- export ---------------------------------------------------------------

// The file under its temporary name: whole blocks in it are kept.
class PartFile {
 public:
  explicit PartFile(std::string path)
      : path_(std::move(path)), part_(path_ + ".part") {}

  // The reader stands behind the whole blocks that the file has of this session
  // at this version; the rest is cut off.
  absl::Status Open(const std::string& session, uint64_t version) {
    // Rows and token ids are prompt text: nobody else's to read.
    fd_ = UniqueFd(open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (fd_.get() < 0) return FileError("open", part_);
    if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      return absl::FailedPreconditionError(
          absl::StrFormat("%s: another export writes it", part_));
    }
    (void)ReadThrough(fd_.get(), part_, 0, [&](std::string_view bytes) {
      return reader_->Feed(BytesOf(bytes));
    });
    const bool ours = reader_->n_blocks() > 0 &&
                      reader_->header().session == session &&
                      reader_->header().version == version;
    if (ours) {
      reader_->BackToBoundary();
    } else {
      reader_ = std::make_unique<ContainerReader>(nullptr);
    }
    const auto size = static_cast<off_t>(reader_->offset());
    if (ftruncate(fd_.get(), size) != 0 ||
        lseek(fd_.get(), size, SEEK_SET) != size) {
      return FileError("truncate", part_);
    }
    return absl::OkStatus();
  }

  absl::Status Append(std::string_view bytes) {
    TORPOR_RETURN_IF_ERROR(reader_->Feed(BytesOf(bytes)));
    return WriteAll(fd_.get(), part_, bytes);
  }

  // Durable under its own name.
  absl::Status Finish() {
    TORPOR_RETURN_IF_ERROR(reader_->Finish());
    if (fsync(fd_.get()) != 0) return FileError("fsync", part_);
    if (rename(part_.c_str(), path_.c_str()) != 0) {
      return FileError("rename", part_);
    }
    const std::string parent =
        std::filesystem::absolute(path_).parent_path().string();
    const UniqueFd dir(open(parent.c_str(), O_RDONLY | O_CLOEXEC));
    if (dir.get() < 0 || fsync(dir.get()) != 0) {
      return FileError("fsync", parent);
    }
    return absl::OkStatus();
  }

  [[nodiscard]] const ContainerReader& reader() const { return *reader_; }

 private:
  const std::string path_;
  const std::string part_;
  UniqueFd fd_;
  std::unique_ptr<ContainerReader> reader_ =
      std::make_unique<ContainerReader>(nullptr);
};

struct ExportOptions {
  std::string session;
  std::string file;
  bool force = false;
};

absl::Status Export(const ExportOptions& options, Context* context) {
  if (!options.force && std::filesystem::exists(options.file)) {
    return absl::AlreadyExistsError(
        absl::StrFormat("%s: is there; --force replaces it", options.file));
  }
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  v1::DescribeRequest describe;
  describe.set_session(options.session);
  TORPOR_ASSIGN_OR_RETURN(
      const v1::SessionState state,
      client->Unary(client->sessions(), &v1::SessionService::Stub::Describe,
                    describe));
  PartFile part(options.file);
  TORPOR_RETURN_IF_ERROR(part.Open(options.session, state.version()));
  const ContainerReader& reader = part.reader();
  const uint64_t from_block = reader.n_blocks();
  v1::ExportRequest request;
  request.set_session(options.session);
  request.set_version(state.version());
  if (from_block > 0) {
    request.set_from_block(from_block);
    request.set_chain(reader.chain().data(), reader.chain().size());
  }
  const absl::Status status =
      ExportContainer(client, request, [&](std::string_view bytes) {
        ShowBytes("exported", reader.offset(), reader.total_bytes());
        return part.Append(bytes);
      });
  ShowProgress("");
  TORPOR_RETURN_IF_ERROR(status);
  TORPOR_RETURN_IF_ERROR(part.Finish());
  if (context->json) {
    PrintJson({{"session", options.session},
               {"version", state.version()},
               {"n_tokens", state.n_tokens()},
               {"bytes", reader.offset()},
               {"from_block", from_block},
               {"file", options.file}});
    return absl::OkStatus();
  }
  if (from_block > 0) {
    std::cout << absl::StrFormat("went on at block %d\n", from_block);
  }
  std::cout << absl::StrFormat(
      "exported %s, version %d, %d tokens: %s in %s\n", ShowId(options.session),
      state.version(), state.n_tokens(), Bytes(reader.offset()), options.file);
  return absl::OkStatus();
}

// ---- import ---------------------------------------------------------------

// Notes where blocks end, so that a transfer can go on there.
class Boundaries final : public store::ContainerVisitor {
 public:
  absl::Status OnOutline(store::ContainerOutline) override { return Note(); }
  absl::Status OnPiece(const store::PieceHeader&,
                       std::span<const uint8_t>) override {
    return absl::OkStatus();
  }
  absl::Status OnBlock(uint64_t) override { return Note(); }
  absl::Status OnEnd() override { return absl::OkStatus(); }

  ContainerReader& reader() { return reader_; }
  // Behind so many blocks.
  [[nodiscard]] absl::StatusOr<uint64_t> At(uint64_t n_blocks) const {
    if (n_blocks == 0) return 0;
    if (n_blocks < at_.size()) return at_[n_blocks];
    return absl::InternalError(
        absl::StrFormat("import: the daemon has %d blocks, the file %d",
                        n_blocks, at_.size() - 1));
  }

 private:
  absl::Status Note() {
    at_.push_back(reader_.boundary_offset());
    return absl::OkStatus();
  }

  ContainerReader reader_{this};
  std::vector<uint64_t> at_;
};

struct ImportOptions {
  // A file, or with `from` a session.
  std::string what;
  std::string from;
  std::string from_token;
  std::string name;
};

absl::StatusOr<Pulled> ImportFile(const ImportOptions& options,
                                  Context* context) {
  const UniqueFd fd(open(options.what.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return FileError("open", options.what);
  // All of it is judged before the daemon hears of it.
  Boundaries boundaries;
  ContainerReader& reader = boundaries.reader();
  absl::Status sound =
      ReadThrough(fd.get(), options.what, 0, [&](std::string_view bytes) {
        ShowBytes("verified", reader.offset(), reader.total_bytes());
        return reader.Feed(BytesOf(bytes));
      });
  if (sound.ok()) sound = reader.Finish();
  ShowProgress("");
  if (!sound.ok()) {
    return absl::Status(
        sound.code(),
        absl::StrFormat("%s: %s", options.what, std::string(sound.message())));
  }
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  v1::ImportHeader header;
  header.set_session(options.name);
  header.set_operation_id(
      ImportOperation(*reader.outline_chain(), options.name));
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ImportStream> stream,
                          ImportStream::Open(client, header));
  Pulled pulled;
  pulled.from_block = stream->first().from_block();
  TORPOR_ASSIGN_OR_RETURN(const uint64_t begin,
                          boundaries.At(pulled.from_block));
  const absl::Status sent =
      ReadThrough(fd.get(), options.what, begin, [&](std::string_view bytes) {
        pulled.bytes += bytes.size();
        ShowBytes("imported", begin + pulled.bytes, reader.total_bytes());
        return stream->Write(bytes);
      });
  ShowProgress("");
  if (!sent.ok() && !absl::IsCancelled(sent)) return sent;
  TORPOR_ASSIGN_OR_RETURN(pulled.answer, stream->Finish());
  return pulled;
}

absl::StatusOr<Pulled> ImportFrom(const ImportOptions& options,
                                  Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * to, context->Connect());
  ClientOptions other = context->client;
  other.address = options.from;
  if (!options.from_token.empty()) other.token = options.from_token;
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> from,
                          Client::Connect(other));
  absl::StatusOr<Pulled> pulled =
      PullContainer(from.get(), to, options.what, options.name,
                    [](uint64_t so_far, uint64_t total) {
                      ShowBytes("pulled", so_far, total);
                    });
  ShowProgress("");
  return pulled;
}

absl::Status Import(const ImportOptions& options, Context* context) {
  TORPOR_ASSIGN_OR_RETURN(const Pulled pulled,
                          options.from.empty() ? ImportFile(options, context)
                                               : ImportFrom(options, context));
  const v1::ImportResponse& answer = pulled.answer;
  if (context->json) {
    PrintJson({{"state", ToJson(answer.state())},
               {"receipt", ToJson(answer.receipt())},
               {"repeated", answer.repeated()},
               {"from_block", pulled.from_block},
               {"bytes", pulled.bytes}});
    return absl::OkStatus();
  }
  if (answer.repeated()) {
    std::cout << absl::StrFormat("%s came in before, as version %d\n",
                                 ShowId(answer.state().session()),
                                 answer.receipt().version());
    return absl::OkStatus();
  }
  if (pulled.from_block > 0) {
    std::cout << absl::StrFormat("went on at block %d\n", pulled.from_block);
  }
  std::cout << absl::StrFormat(
      "imported %s, version %d, %d tokens: %s in %d blocks, %d of them "
      "shared\n",
      ShowId(answer.state().session()), answer.receipt().version(),
      answer.receipt().n_tokens(), Bytes(pulled.bytes),
      answer.state().n_blocks(), answer.receipt().blocks_shared());
  return absl::OkStatus();
}

}  // namespace

void AddTransferCommands(CLI::App* app, Context* context, Run* run) {
  {
    auto options = std::make_shared<ExportOptions>();
    CLI::App* c = app->add_subcommand("export", "A session into a file");
    c->add_option("session", options->session)->required();
    c->add_option("file", options->file,
                  "Written as FILE.part, then renamed; run again, it goes on "
                  "where it broke")
        ->required();
    c->add_flag("--force", options->force, "Replace a file that is there");
    c->callback([=] { *run = [=] { return Export(*options, context); }; });
  }
  {
    auto options = std::make_shared<ImportOptions>();
    CLI::App* c = app->add_subcommand(
        "import", "A session from a file, or from another daemon");
    c->add_option("what", options->what, "A file; with --from a session")
        ->required();
    c->add_option("--from", options->from,
                  "The other daemon: unix:///path or host:port");
    c->add_option("--from-token", options->from_token,
                  "Bearer token there; --token else")
        ->envname("TORPOR_FROM_TOKEN");
    c->add_option("--as", options->name, "Another id for it here");
    c->callback([=] { *run = [=] { return Import(*options, context); }; });
  }
}

}  // namespace torpor::service::cli
