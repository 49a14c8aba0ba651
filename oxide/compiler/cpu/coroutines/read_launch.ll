  %gx.at = getelementptr i8, ptr %launch, i64 <launch.grid[0]>
  %gx = load i32, ptr %gx.at
  store i32 %gx, {{nctaid[i32 0]}}
  %gy.at = getelementptr i8, ptr %launch, i64 <launch.grid[1]>
  %gy = load i32, ptr %gy.at
  store i32 %gy, {{nctaid[i32 1]}}
  %gz.at = getelementptr i8, ptr %launch, i64 <launch.grid[2]>
  %gz = load i32, ptr %gz.at
  store i32 %gz, {{nctaid[i32 2]}}
  %nx.at = getelementptr i8, ptr %launch, i64 <launch.block[0]>
  %nx = load i32, ptr %nx.at
  store i32 %nx, {{ntid[i32 0]}}
  %ny.at = getelementptr i8, ptr %launch, i64 <launch.block[1]>
  %ny = load i32, ptr %ny.at
  store i32 %ny, {{ntid[i32 1]}}
  %nz.at = getelementptr i8, ptr %launch, i64 <launch.block[2]>
  %nz = load i32, ptr %nz.at
  store i32 %nz, {{ntid[i32 2]}}
  %dynamic.at = getelementptr i8, ptr %launch, i64 <launch.shared_bytes>
  %dynamic.narrow = load i32, ptr %dynamic.at
  %dynamic = zext i32 %dynamic.narrow to i64
  store i64 %dynamic, {{dynamic}}
  %seed.at = getelementptr i8, ptr %launch, i64 <launch.seed>
  %seed = load i32, ptr %seed.at
  %seeded = icmp ne i32 %seed, 0
  %params.at = getelementptr i8, ptr %launch, i64 <launch.params>
  %params = load ptr, ptr %params.at
  store ptr %params, {{params}}
  %record.at = getelementptr <params>, ptr %params, i32 0, i32 <last>
  %record = load ptr, ptr %record.at
  store ptr %record, {{record}}
