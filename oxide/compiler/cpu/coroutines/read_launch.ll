  %gx.at = getelementptr i32, ptr %launch, i64 0
  %gx = load i32, ptr %gx.at
  store i32 %gx, {{nctaid[i32 0]}}
  %gy.at = getelementptr i32, ptr %launch, i64 1
  %gy = load i32, ptr %gy.at
  store i32 %gy, {{nctaid[i32 1]}}
  %gz.at = getelementptr i32, ptr %launch, i64 2
  %gz = load i32, ptr %gz.at
  store i32 %gz, {{nctaid[i32 2]}}
  %nx.at = getelementptr i32, ptr %launch, i64 3
  %nx = load i32, ptr %nx.at
  store i32 %nx, {{ntid[i32 0]}}
  %ny.at = getelementptr i32, ptr %launch, i64 4
  %ny = load i32, ptr %ny.at
  store i32 %ny, {{ntid[i32 1]}}
  %nz.at = getelementptr i32, ptr %launch, i64 5
  %nz = load i32, ptr %nz.at
  store i32 %nz, {{ntid[i32 2]}}
  %dynamic.at = getelementptr i32, ptr %launch, i64 6
  %dynamic.narrow = load i32, ptr %dynamic.at
  %dynamic = zext i32 %dynamic.narrow to i64
  store i64 %dynamic, {{dynamic}}
  %seed.at = getelementptr i32, ptr %launch, i64 7
  %seed = load i32, ptr %seed.at
  %seeded = icmp ne i32 %seed, 0
  %params.at = getelementptr i8, ptr %launch, i64 32
  %params = load ptr, ptr %params.at
  store ptr %params, {{params}}
  %record.at = getelementptr <params>, ptr %params, i32 0, i32 <last>
  %record = load ptr, ptr %record.at
  store ptr %record, {{record}}
