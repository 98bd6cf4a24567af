// Trains MNIST with a step that Python exported. There is no Python in this program.
//
//   train FOLDER DATA [--epochs N] [--seed N] [--save FILE] [--resume FILE] [--losses FILE]
//
// FOLDER has what export_steps.py wrote, DATA the four IDX files of MNIST. Each epoch prints the mean loss and the accuracy
// on the test images. --save writes the state after each epoch, and the number of epochs in a file
// beside it; --resume goes on from there. --losses writes the bits of every loss.
#include <cstdio>
#include <iostream>
#include <numeric>
#include <random>

#include "tvmfun/safetensors.hpp"
#include "tvmfun/step.hpp"

namespace {

constexpr std::size_t pixels = 28 * 28;

struct Data {
  std::vector<unsigned char> images, labels;

  std::size_t size() const { return labels.size(); }
};

std::vector<unsigned char> read_idx(const std::string& path, std::size_t axes, std::size_t item) {
  std::vector<unsigned char> content = tvmfun::detail::read_file(path);
  std::size_t header = 4 * (1 + axes);
  auto number = [&](std::size_t i) {
    return std::size_t{content[i]} << 24 | std::size_t{content[i + 1]} << 16 | std::size_t{content[i + 2]} << 8 |
           content[i + 3];
  };
  if (content.size() < header || number(0) != 0x800 + axes || content.size() != header + number(4) * item) {
    throw std::runtime_error(path + " is not an IDX file of MNIST");
  }
  return {content.begin() + static_cast<std::ptrdiff_t>(header), content.end()};
}

Data read_data(const std::string& folder, const std::string& part) {
  Data data{read_idx(folder + "/" + part + "-images-idx3-ubyte", 3, pixels),
            read_idx(folder + "/" + part + "-labels-idx1-ubyte", 1, 1)};
  if (data.images.size() != data.size() * pixels) {
    throw std::runtime_error(folder + " has another number of images than labels");
  }
  return data;
}

// Normalized as in mnist_data.py.
void copy_images(const Data& data, const std::size_t* order, std::size_t count, tvmfun::Span<float> images) {
  static const std::vector<float> values = [] {
    std::vector<float> table(256);
    for (int i = 0; i < 256; i++) {
      table[static_cast<std::size_t>(i)] = static_cast<float>((i / 255.0 - 0.1307) / 0.3081);
    }
    return table;
  }();
  for (std::size_t i = 0; i < count; i++) {
    for (std::size_t j = 0; j < pixels; j++) {
      images[i * pixels + j] = values[data.images[order[i] * pixels + j]];
    }
  }
}

// The standard says which numbers the generator yields, but not what std::shuffle does with them.
std::vector<std::size_t> shuffled(std::size_t size, unsigned seed) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 generator(seed);
  for (std::size_t i = size; i-- > 1;) {
    std::swap(order[i], order[generator() % (i + 1)]);
  }
  return order;
}

double accuracy(tvmfun::Call& predict, const tvmfun::Call& training, const Data& data) {
  for (const tvmfun::Array& leaf : training.arguments("state.model")) {
    tvmfun::Array copy = predict.argument("model" + leaf.name());
    std::memcpy(copy.data(), leaf.data(), leaf.nbytes());
  }
  std::vector<std::size_t> order(data.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  auto images = predict.argument("images").as<float>();
  std::size_t batch = images.size() / pixels, correct = 0;
  for (std::size_t first = 0; first < data.size(); first += batch) {
    std::size_t count = std::min(batch, data.size() - first);
    copy_images(data, &order[first], count, images);
    predict.run();
    auto digits = predict.result("result").as<std::int32_t>();
    for (std::size_t i = 0; i < count; i++) {
      correct += digits[i] == data.labels[first + i];
    }
  }
  return static_cast<double>(correct) / static_cast<double>(data.size());
}

struct Options {
  std::string folder, data, save, resume, losses;
  int epochs = 1;
  unsigned seed = 1;
};

Options parse(int count, char** words) {
  Options options;
  std::vector<std::string> positional;
  for (int i = 1; i < count; i++) {
    std::string word = words[i];
    if (word.compare(0, 2, "--") != 0) {
      positional.push_back(word);
      continue;
    }
    if (++i == count) {
      throw std::runtime_error(word + " needs a value");
    }
    if (word == "--epochs") {
      options.epochs = std::stoi(words[i]);
    } else if (word == "--seed") {
      options.seed = static_cast<unsigned>(std::stoul(words[i]));
    } else if (word == "--save") {
      options.save = words[i];
    } else if (word == "--resume") {
      options.resume = words[i];
    } else if (word == "--losses") {
      options.losses = words[i];
    } else {
      throw std::runtime_error("there is no option " + word);
    }
  }
  if (positional.size() != 2) {
    throw std::runtime_error("usage: train FOLDER DATA [--epochs N] [--seed N] [--save FILE] [--resume FILE]");
  }
  options.folder = positional[0];
  options.data = positional[1];
  return options;
}

int epochs_of(const std::string& path) {
  int epochs = 0;
  if (!(std::ifstream(path + ".epochs") >> epochs)) {
    throw std::runtime_error(path + ".epochs cannot be read");
  }
  return epochs;
}

void train(const Options& options) {
  Data training = read_data(options.data, "train"), test = read_data(options.data, "t10k");
  tvmfun::Call step{tvmfun::Step(options.folder + "/step.so")};
  tvmfun::Call predict{tvmfun::Step(options.folder + "/predict.so")};
  bool is_new = options.resume.empty();
  tvmfun::load_safetensors(is_new ? options.folder + "/start.safetensors" : options.resume, step.arguments("state"));

  std::FILE* losses = options.losses.empty() ? nullptr : std::fopen(options.losses.c_str(), "wb");
  auto labels = step.argument("labels").as<std::int32_t>();
  auto images = step.argument("images").as<float>();
  std::size_t batch = labels.size(), steps = training.size() / batch;
  for (int epoch = is_new ? 0 : epochs_of(options.resume); epoch < options.epochs; epoch++) {
    std::vector<std::size_t> order = shuffled(training.size(), options.seed + static_cast<unsigned>(epoch));
    double total = 0;
    for (std::size_t i = 0; i < steps; i++) {
      const std::size_t* chosen = &order[i * batch];
      copy_images(training, chosen, batch, images);
      for (std::size_t j = 0; j < batch; j++) {
        labels[j] = training.labels[chosen[j]];
      }
      step.run();
      float loss = step.result("[1]").as<float>()[0];
      step.feed("[0]", "state");
      total += loss;
      if (losses) {
        std::fwrite(&loss, sizeof loss, 1, losses);
      }
    }
    std::printf("epoch %2d  loss %.4f  test accuracy %.2f%%\n", epoch + 1, total / static_cast<double>(steps),
                100 * accuracy(predict, step, test));
    std::fflush(stdout);
    if (!options.save.empty()) {
      tvmfun::save_safetensors(options.save, step.arguments("state"));
      std::ofstream(options.save + ".epochs") << epoch + 1 << "\n";
    }
  }
  if (losses) {
    std::fclose(losses);
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    train(parse(count, words));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
